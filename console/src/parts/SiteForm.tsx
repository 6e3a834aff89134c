import { ActionIcon, Button, Group, Modal, Select, Stack, Text, TextInput } from "@mantine/core";
import { useState } from "react";

import { CREATE_SITE, UPDATE_SITE } from "../api/documents";
import type { Failure } from "../api/failure";
import { useMutate } from "../api/mutate";
import { useSession } from "../api/session";
import type { SiteKind, SitesQuery } from "../generated/graphql";
import { FailureNotice } from "./Notices";

type Site = SitesQuery["sites"]["nodes"][number];

/** The fields whose inputs show their own errors. The notice above the form shows all other errors. */
const INPUT_FIELDS = ["name", "region", "kind", "dedicatedTo"];

/** The dialog that creates a site, or changes `site` if it is given. */
export function SiteForm(props: { site?: Site | undefined; onClose: () => void; onDone: (id: string) => void }) {
  const { site } = props;
  const { tenantId } = useSession();
  const mutate = useMutate();
  const platform = tenantId === "root";
  const [name, setName] = useState(site?.name ?? "");
  const [region, setRegion] = useState(site?.region ?? "");
  const [kind, setKind] = useState<SiteKind>(site?.kind ?? (platform ? "SHARED" : "CUSTOM"));
  const [dedicatedTo, setDedicatedTo] = useState(site?.dedicatedTo ?? "");
  const [labels, setLabels] = useState(site?.labels.map(({ key, value }) => ({ key, value })) ?? []);
  const [failure, setFailure] = useState<Failure | null>(null);
  const [busy, setBusy] = useState(false);
  const [idempotencyKey] = useState(() => crypto.randomUUID());

  async function submit() {
    setBusy(true);
    const dedicated = kind === "DEDICATED" ? { dedicatedTo } : {};
    const outcome = site
      ? await mutate(UPDATE_SITE, {
          input: { tenantId, siteId: site.id, expectedRevision: site.revision, name, region, labels, ...dedicated },
        })
      : await mutate(CREATE_SITE, { input: { tenantId, kind, name, region, labels, idempotencyKey, ...dedicated } });
    setBusy(false);
    setFailure(outcome.failure);
    if (outcome.data) props.onDone("createSite" in outcome.data ? outcome.data.createSite.site.id : (site?.id ?? ""));
  }

  const fields = failure?.fields ?? {};
  const notice = failure && {
    ...failure,
    fields: Object.fromEntries(Object.entries(fields).filter(([path]) => !INPUT_FIELDS.includes(path))),
  };
  return (
    <Modal opened onClose={props.onClose} title={site ? `Edit ${site.name}` : "New site"}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <Stack>
          <FailureNotice failure={notice} />
          <TextInput
            label="Name"
            required
            data-autofocus
            value={name}
            error={fields.name}
            onChange={(event) => setName(event.currentTarget.value)}
          />
          <TextInput
            label="Region"
            description="Letters, digits and ._-"
            required
            value={region}
            error={fields.region}
            onChange={(event) => setRegion(event.currentTarget.value)}
          />
          {platform && !site && (
            <Select
              label="Kind"
              data={[
                { value: "SHARED", label: "Shared: every tenant sees it" },
                { value: "DEDICATED", label: "Dedicated: one tenant sees it" },
              ]}
              value={kind}
              error={fields.kind}
              allowDeselect={false}
              onChange={(value) => setKind((value ?? "SHARED") as SiteKind)}
            />
          )}
          {kind === "DEDICATED" && (
            <TextInput
              label="Dedicated to tenant"
              required
              value={dedicatedTo}
              error={fields.dedicatedTo}
              onChange={(event) => setDedicatedTo(event.currentTarget.value)}
            />
          )}
          <Stack gap="xs" role="group" aria-label="Labels">
            <Text size="sm" fw={500}>
              Labels
            </Text>
            {labels.map((label, index) => (
              <Group key={index} gap="xs" wrap="nowrap">
                {(["key", "value"] as const).map((part) => (
                  <TextInput
                    key={part}
                    aria-label={`Label ${index + 1} ${part}`}
                    placeholder={part}
                    flex={1}
                    required={part === "key"}
                    value={label[part]}
                    error={fields[`labels.${index}.${part}`] !== undefined}
                    onChange={(event) =>
                      setLabels(labels.with(index, { ...label, [part]: event.currentTarget.value }))
                    }
                  />
                ))}
                <ActionIcon
                  variant="subtle"
                  color="gray"
                  aria-label={`Remove label ${index + 1}`}
                  onClick={() => setLabels(labels.toSpliced(index, 1))}
                >
                  ✕
                </ActionIcon>
              </Group>
            ))}
            <Button
              size="xs"
              variant="default"
              w="fit-content"
              onClick={() => setLabels([...labels, { key: "", value: "" }])}
            >
              Add label
            </Button>
          </Stack>
          <Group justify="flex-end">
            <Button variant="default" onClick={props.onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={busy}>
              {site ? "Save" : "Create"}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
