import { Badge, Button, Text, Title } from "@mantine/core";
import { useState } from "react";
import { useQuery } from "urql";

import { REVOKE_SITE_AGENT, SITE_AGENTS } from "../api/documents";
import { useLive } from "../api/live";
import { useMutate } from "../api/mutate";
import { Confirm } from "./Confirm";
import { Listing } from "./Listing";
import { usePager } from "./Pager";
import { Time } from "./Time";

/** Lists the agents that enrolled on the site, with the time and address at which each was last seen. */
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
  return (
    <section aria-labelledby="agents">
      <Title order={2} size="h3" id="agents" mb="xs">
        Agents
      </Title>
      <Listing
        list={data?.siteAgents}
        error={error}
        onRetry={refresh}
        pager={pager}
        nouns={["agent", "agents"]}
        empty="No agent yet. One enrols with a site token."
        id={(agent) => agent.id}
        columns={[
          {
            head: "Name",
            cell: (agent) => (
              <Text size="sm" fw={500} title={agent.id}>
                {agent.name}
              </Text>
            ),
          },
          {
            head: "State",
            cell: (agent) =>
              agent.revokedAt ? (
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
              ),
          },
          { head: "Last seen", cell: (agent) => <Time at={agent.lastSeenAt} /> },
          { head: "Address", from: "sm", cell: (agent) => agent.address ?? "–" },
          { head: "Enrolled", from: "sm", cell: (agent) => <Time at={agent.enrolledAt} /> },
          {
            cell: (agent) =>
              manages &&
              !agent.revokedAt && (
                <Button size="xs" variant="default" onClick={() => setRevoking(agent)}>
                  Revoke
                </Button>
              ),
          },
        ]}
      />
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
