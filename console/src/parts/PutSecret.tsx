import { Alert, Button, Group, Modal, SegmentedControl, Stack, Textarea, TextInput } from "@mantine/core";
import { useState } from "react";

import { PUT_SECRET } from "../api/documents";
import type { Failure } from "../api/failure";
import { useMutate } from "../api/mutate";
import { useSession } from "../api/session";
import type { SecretScope } from "../generated/graphql";
import { FailureNotice } from "./Notices";

/** The dialog that puts a secret. The value is in its field until it is sent, and after that nowhere in this page. */
export function PutSecret(props: { name?: string; onClose: () => void; onPut: () => void }) {
  const { tenantId, viewer } = useSession();
  const mutate = useMutate();
  const fleet = tenantId === "root" && viewer.fleetActions.includes("compute:secrets:manage");
  const [name, setName] = useState(props.name ?? "");
  const [value, setValue] = useState("");
  const [scope, setScope] = useState<SecretScope>("TENANT");
  const [failure, setFailure] = useState<Failure | null>(null);
  const [put, setPut] = useState<{ reference: string; version: number } | null>(null);
  const [busy, setBusy] = useState(false);
  const [idempotencyKey, setIdempotencyKey] = useState(() => crypto.randomUUID());

  async function submit() {
    setBusy(true);
    const outcome = await mutate(PUT_SECRET, { input: { tenantId, name, value, scope, idempotencyKey } });
    setBusy(false);
    setValue("");
    setFailure(outcome.failure);
    if (!outcome.data) return;
    setPut(outcome.data.putSecret);
    setIdempotencyKey(crypto.randomUUID());
    props.onPut();
  }

  return (
    <Modal opened onClose={props.onClose} title="Put a secret">
      <form
        autoComplete="off"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <Stack>
          {put && (
            <Alert color="green" role="status">
              Stored {put.reference}, version {put.version}. Nothing shows the value again.
            </Alert>
          )}
          <FailureNotice failure={failure && { ...failure, fields: {} }} />
          {fleet && (
            <SegmentedControl
              aria-label="Scope"
              data={[
                { value: "TENANT", label: "This tenant" },
                { value: "FLEET", label: "The fleet" },
              ]}
              value={scope}
              onChange={(chosen) => setScope(chosen as SecretScope)}
            />
          )}
          <TextInput
            label="Name"
            description="Such as bmc/rack-1"
            required
            data-autofocus
            value={name}
            error={failure?.fields.name}
            onChange={(event) => setName(event.currentTarget.value)}
          />
          <Textarea
            label="Value"
            description="Kept byte for byte, line breaks too, and never shown again"
            required
            autosize
            minRows={1}
            maxRows={8}
            autoComplete="off"
            spellCheck={false}
            data-1p-ignore
            classNames={{ input: "masked" }}
            value={value}
            error={failure?.fields.value}
            onChange={(event) => setValue(event.currentTarget.value)}
          />
          <Group justify="flex-end">
            <Button variant="default" onClick={props.onClose}>
              {put ? "Close" : "Cancel"}
            </Button>
            <Button type="submit" loading={busy}>
              Put
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
