import { Autocomplete, Button, Group, Modal, Stack, Text, Title } from "@mantine/core";
import { useState } from "react";
import { useQuery } from "urql";

import { GRANT_SECRET, REVOKE_SECRET_GRANT, SECRET_GRANTS, SECRET_REFERENCES } from "../api/documents";
import type { Failure } from "../api/failure";
import { useLive } from "../api/live";
import { useMutate } from "../api/mutate";
import { useSession } from "../api/session";
import { Confirm } from "./Confirm";
import { Listing } from "./Listing";
import { FailureNotice } from "./Notices";
import { usePager } from "./Pager";
import { Time } from "./Time";

/** Lists the tenant's secrets that the holder of the site's boot lease may fetch. Grants are added and revoked here. */
export function Grants({ siteId, open }: { siteId: string; open: boolean }) {
  const { tenantId, may } = useSession();
  const mutate = useMutate();
  const [dialog, setDialog] = useState<"grant" | { reference: string } | null>(null);
  const pager = usePager(`${tenantId} ${siteId}`);
  const [{ data, error }, query] = useQuery({
    query: SECRET_GRANTS,
    variables: { tenantId, siteId, after: pager.after },
  });
  const refresh = () => query({ requestPolicy: "network-only" });
  useLive(refresh, siteId);
  const manages = may("compute:secrets:manage");
  const close = () => setDialog(null);
  return (
    <section aria-labelledby="grants">
      <Group justify="space-between" mb="xs">
        <Title order={2} size="h3" id="grants">
          Secrets for this site
        </Title>
        {manages && open && <Button onClick={() => setDialog("grant")}>Grant secret</Button>}
      </Group>
      <Listing
        list={data?.secretGrants}
        error={error}
        onRetry={refresh}
        pager={pager}
        nouns={["grant", "grants"]}
        empty="No secret is granted to this site."
        id={(grant) => grant.reference}
        columns={[
          {
            head: "Name",
            cell: ({ name, reference }) => (
              <Text size="sm" fw={500} title={reference}>
                {name}
              </Text>
            ),
          },
          { head: "Scope", cell: ({ scope }) => scope.toLowerCase() },
          { head: "Granted", cell: ({ createdAt }) => <Time at={createdAt} /> },
          {
            cell: ({ reference }) =>
              manages && (
                <Button size="xs" variant="default" onClick={() => setDialog({ reference })}>
                  Revoke
                </Button>
              ),
          },
        ]}
      />
      {dialog === "grant" && <GrantSecret siteId={siteId} onClose={close} onGranted={refresh} />}
      {dialog !== null && dialog !== "grant" && (
        <Confirm
          title="Take this grant back?"
          verb="Revoke grant"
          onClose={close}
          act={async () => {
            const { failure } = await mutate(REVOKE_SECRET_GRANT, { input: { tenantId, siteId, ...dialog } });
            refresh();
            return failure;
          }}
        >
          <Text size="sm" style={{ overflowWrap: "anywhere" }}>
            This site is not handed {dialog.reference} any more. What was handed over stays there: put a new version.
          </Text>
        </Confirm>
      )}
    </section>
  );
}

/** The dialog that grants a secret by its reference. It suggests the first two hundred; any other can be typed. */
function GrantSecret(props: { siteId: string; onClose: () => void; onGranted: () => void }) {
  const { tenantId, viewer } = useSession();
  const mutate = useMutate();
  const [reference, setReference] = useState("");
  const [failure, setFailure] = useState<Failure | null>(null);
  const [busy, setBusy] = useState(false);
  const fleet = tenantId === "root" && viewer.fleetActions.includes("compute:secrets:manage");
  const [{ data }] = useQuery({ query: SECRET_REFERENCES, variables: { tenantId, fleet } });
  const known = [...(data?.secrets.nodes ?? []), ...(data?.fleet?.nodes ?? [])].map((secret) => secret.reference);
  return (
    <Modal opened onClose={props.onClose} title="Grant a secret to this site">
      <form
        onSubmit={async (event) => {
          event.preventDefault();
          setBusy(true);
          const { siteId } = props;
          const outcome = await mutate(GRANT_SECRET, { input: { tenantId, siteId, reference: reference.trim() } });
          setBusy(false);
          setFailure(outcome.failure);
          if (outcome.failure) return;
          props.onGranted();
          props.onClose();
        }}
      >
        <Stack>
          <Text size="sm">Whichever agent holds the boot lease of this site may be handed it, in every version.</Text>
          <FailureNotice failure={failure && { ...failure, fields: {} }} />
          <Autocomplete
            label="Secret"
            description={`Its reference, such as secret://tenant/${tenantId}/bmc/rack-1`}
            required
            data-autofocus
            data={known}
            value={reference}
            error={failure?.fields.reference}
            onChange={setReference}
          />
          <Group justify="flex-end">
            <Button variant="default" onClick={props.onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={busy}>
              Grant
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
