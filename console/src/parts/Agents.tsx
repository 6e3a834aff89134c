import { Badge, Button, Table, Text, Title } from "@mantine/core";
import { useState } from "react";
import { useQuery } from "urql";

import { REVOKE_SITE_AGENT, SITE_AGENTS } from "../api/documents";
import { failureOf } from "../api/failure";
import { useLive } from "../api/live";
import { useMutate } from "../api/mutate";
import { Confirm } from "./Confirm";
import { Empty, FailureNotice, Loading } from "./Notices";
import { Pager, usePager } from "./Pager";
import { Time } from "./Time";

/** Who enrolled on the site, when and where they were last seen. */
export function Agents(props: { tenantId: string; siteId: string; holderId: string | null; manages: boolean }) {
  const { tenantId, siteId, holderId, manages } = props;
  const mutate = useMutate();
  const [revoking, setRevoking] = useState<{ id: string; name: string } | null>(null);
  const pager = usePager(siteId);
  const [{ data, error }, query] = useQuery({
    query: SITE_AGENTS,
    variables: { tenantId, siteId, after: pager.after },
  });
  const refresh = () => query({ requestPolicy: "network-only" });
  useLive(refresh, siteId);
  const agents = data?.siteAgents;
  return (
    <section aria-labelledby="agents">
      <Title order={2} size="h3" id="agents" mb="xs">
        Agents
      </Title>
      {error && <FailureNotice failure={failureOf(error)} onRetry={refresh} />}
      {!error && !agents && <Loading what="agents" />}
      {agents?.nodes.length === 0 && <Empty>No agent yet. One enrols with a site token.</Empty>}
      {agents && agents.nodes.length > 0 && (
        <>
          <Table.ScrollContainer minWidth={340}>
            <Table verticalSpacing="sm">
              <Table.Thead>
                <Table.Tr>
                  <Table.Th>Name</Table.Th>
                  <Table.Th>State</Table.Th>
                  <Table.Th>Last seen</Table.Th>
                  <Table.Th visibleFrom="sm">Address</Table.Th>
                  <Table.Th visibleFrom="sm">Enrolled</Table.Th>
                  <Table.Th>
                    <span className="visually-hidden">Actions</span>
                  </Table.Th>
                </Table.Tr>
              </Table.Thead>
              <Table.Tbody>
                {agents.nodes.map((agent) => (
                  <Table.Tr key={agent.id}>
                    <Table.Td>
                      <Text size="sm" fw={500} title={agent.id}>
                        {agent.name}
                      </Text>
                    </Table.Td>
                    <Table.Td>
                      {agent.revokedAt ? (
                        <Badge variant="light" color="red">
                          revoked
                        </Badge>
                      ) : agent.id === holderId ? (
                        <Badge variant="light" color="green">
                          boots
                        </Badge>
                      ) : (
                        <Badge variant="light" color="gray">
                          stands by
                        </Badge>
                      )}
                    </Table.Td>
                    <Table.Td>
                      <Time at={agent.lastSeenAt} />
                    </Table.Td>
                    <Table.Td visibleFrom="sm">{agent.address ?? "–"}</Table.Td>
                    <Table.Td visibleFrom="sm">
                      <Time at={agent.enrolledAt} />
                    </Table.Td>
                    <Table.Td>
                      {manages && !agent.revokedAt && (
                        <Button size="xs" variant="default" onClick={() => setRevoking(agent)}>
                          Revoke
                        </Button>
                      )}
                    </Table.Td>
                  </Table.Tr>
                ))}
              </Table.Tbody>
            </Table>
          </Table.ScrollContainer>
          <Pager pager={pager} total={agents.totalCount} nouns={["agent", "agents"]} pageInfo={agents.pageInfo} />
        </>
      )}
      {revoking && (
        <Confirm
          title={`Revoke ${revoking.name}?`}
          verb="Revoke agent"
          onClose={() => setRevoking(null)}
          act={async () => {
            const { failure } = await mutate(REVOKE_SITE_AGENT, { input: { tenantId, agentId: revoking.id } });
            refresh();
            return failure;
          }}
        >
          It is refused at once and for good
          {revoking.id === holderId && ", and loses the boot lease"}. It comes back with a new token alone.
        </Confirm>
      )}
    </section>
  );
}
