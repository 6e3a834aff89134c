import { Autocomplete, Button, Group, Modal, Stack, Table, Text, Title } from "@mantine/core";
import { useState } from "react";
import { useQuery } from "urql";

import { GRANT_SECRET, REVOKE_SECRET_GRANT, SECRET_GRANTS, SECRET_REFERENCES } from "../api/documents";
import { type Failure, failureOf } from "../api/failure";
import { useLive } from "../api/live";
import { useMutate } from "../api/mutate";
import { useSession } from "../api/session";
import { Confirm } from "./Confirm";
import { Empty, FailureNotice, Loading } from "./Notices";
import { Pager, usePager } from "./Pager";
import { Time } from "./Time";

/** Which of the tenant's secrets the holder of the site's boot lease may be handed. */
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
  const grants = data?.secretGrants;
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
      {error && <FailureNotice failure={failureOf(error)} onRetry={refresh} />}
      {!error && !grants && <Loading what="grants" />}
      {grants?.nodes.length === 0 && <Empty>No secret is granted to this site.</Empty>}
      {grants && grants.nodes.length > 0 && (
        <>
          <Table.ScrollContainer minWidth={340}>
            <Table verticalSpacing="sm">
              <Table.Thead>
                <Table.Tr>
                  <Table.Th>Name</Table.Th>
                  <Table.Th>Scope</Table.Th>
                  <Table.Th>Granted</Table.Th>
                  <Table.Th>
                    <span className="visually-hidden">Actions</span>
                  </Table.Th>
                </Table.Tr>
              </Table.Thead>
              <Table.Tbody>
                {grants.nodes.map(({ reference, name, scope, createdAt }) => (
                  <Table.Tr key={reference}>
                    <Table.Td fw={500} title={reference}>
                      {name}
                    </Table.Td>
                    <Table.Td>{scope.toLowerCase()}</Table.Td>
                    <Table.Td>
                      <Time at={createdAt} />
                    </Table.Td>
                    <Table.Td>
                      {manages && (
                        <Button size="xs" variant="default" onClick={() => setDialog({ reference })}>
                          Revoke
                        </Button>
                      )}
                    </Table.Td>
                  </Table.Tr>
                ))}
              </Table.Tbody>
            </Table>
          </Table.ScrollContainer>
          <Pager pager={pager} total={grants.totalCount} nouns={["grant", "grants"]} pageInfo={grants.pageInfo} />
        </>
      )}
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

/** Grants a secret by its reference: one of the first two hundred, or another that is typed. */
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
