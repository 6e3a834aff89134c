import { Button, Code, Group, SegmentedControl, Stack, Table, Title } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import { useState } from "react";
import { useQuery } from "urql";

import { SECRETS } from "../api/documents";
import { failureOf } from "../api/failure";
import { useSession } from "../api/session";
import type { SecretScope } from "../generated/graphql";
import { Empty, FailureNotice, Loading } from "../parts/Notices";
import { Pager, usePager } from "../parts/Pager";
import { PutSecret } from "../parts/PutSecret";
import { Time } from "../parts/Time";

/** The secrets' metadata. Values go in by a dialog and are never here. */
export function Secrets() {
  const { tenantId, viewer, may } = useSession();
  useDocumentTitle("Secrets · Better Compute");
  const [scope, setScope] = useState<SecretScope>("TENANT");
  const [putting, setPutting] = useState<{ name?: string } | null>(null);
  const pager = usePager(`${tenantId} ${scope}`);
  const [{ data, error, fetching }, query] = useQuery({
    query: SECRETS,
    variables: { tenantId, scope, after: pager.after },
  });
  const refresh = () => query({ requestPolicy: "network-only" });
  const manages = may("compute:secrets:manage");
  return (
    <Stack>
      <Group justify="space-between">
        <Title order={1} size="h2">
          Secrets
        </Title>
        {manages && <Button onClick={() => setPutting({})}>Put secret</Button>}
      </Group>
      {viewer.fleetActions.includes("compute:secrets:read") && tenantId === "root" && (
        <SegmentedControl
          aria-label="Scope"
          w="fit-content"
          data={[
            { value: "TENANT", label: "This tenant" },
            { value: "FLEET", label: "The fleet" },
          ]}
          value={scope}
          onChange={(chosen) => setScope(chosen as SecretScope)}
        />
      )}
      {error && <FailureNotice failure={failureOf(error)} onRetry={refresh} />}
      {fetching && !data && <Loading what="secrets" />}
      {data?.secrets.nodes.length === 0 && <Empty>No secret yet.</Empty>}
      {data && data.secrets.nodes.length > 0 && (
        <>
          <Table.ScrollContainer minWidth={340}>
            <Table verticalSpacing="sm">
              <Table.Thead>
                <Table.Tr>
                  <Table.Th>Name</Table.Th>
                  <Table.Th visibleFrom="sm">Reference</Table.Th>
                  <Table.Th>Version</Table.Th>
                  <Table.Th>Put</Table.Th>
                  <Table.Th>
                    <span className="visually-hidden">Actions</span>
                  </Table.Th>
                </Table.Tr>
              </Table.Thead>
              <Table.Tbody>
                {data.secrets.nodes.map((secret) => (
                  <Table.Tr key={secret.reference}>
                    <Table.Td fw={500}>{secret.name}</Table.Td>
                    <Table.Td visibleFrom="sm">
                      <Code>{secret.reference}</Code>
                    </Table.Td>
                    <Table.Td>{secret.version}</Table.Td>
                    <Table.Td>
                      <Time at={secret.updatedAt} />
                    </Table.Td>
                    <Table.Td>
                      {manages && (
                        <Button size="xs" variant="default" onClick={() => setPutting({ name: secret.name })}>
                          New version
                        </Button>
                      )}
                    </Table.Td>
                  </Table.Tr>
                ))}
              </Table.Tbody>
            </Table>
          </Table.ScrollContainer>
          <Pager pager={pager} total={data.secrets.totalCount} nouns={["secret", "secrets"]} pageInfo={data.secrets.pageInfo} />
        </>
      )}
      {putting && <PutSecret {...putting} onClose={() => setPutting(null)} onPut={refresh} />}
    </Stack>
  );
}
