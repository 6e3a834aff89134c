import { Group, Text, Timeline, Title } from "@mantine/core";
import { useQuery } from "urql";

import { AGENT_NAME } from "../api/documents";
import type { SiteQuery } from "../generated/graphql";
import { Empty } from "./Notices";
import { lasting, Time } from "./Time";

type Lease = NonNullable<SiteQuery["site"]>["bootLease"];

const REASONS: Record<string, string> = {
  released: "released",
  expired: "expired",
  reacquired: "acquired anew by the same agent",
  revoked: "the agent was revoked",
  site_deleted: "the site was deleted",
};

/** Shows which agent holds the site's boot lease, and so may boot its machines, and which agents held it before. */
export function BootLease({ lease, tenantId, named }: { lease: Lease; tenantId: string; named: boolean }) {
  const { holderAgentId, acquiredAt, history } = lease;
  return (
    <section aria-labelledby="lease">
      <Title order={2} size="h3" id="lease" mb="sm">
        Boot lease
      </Title>
      {!holderAgentId && history.length === 0 ? (
        <Empty>Nobody has held it yet.</Empty>
      ) : (
        <Timeline active={0} bulletSize={16} color={holderAgentId ? "green" : "gray"}>
          <Timeline.Item title={holderAgentId ? <Name id={holderAgentId} {...{ tenantId, named }} /> : "Nobody"}>
            <Moment what={holderAgentId ? `Epoch ${lease.epoch}, holds it since` : "holds it now"} at={acquiredAt} />
          </Timeline.Item>
          {history.map((term) => (
            <Timeline.Item key={term.epoch} title={<Name id={term.agentId} {...{ tenantId, named }} />}>
              <Moment
                what={`Epoch ${term.epoch}, for ${lasting(term.acquiredAt, term.endedAt)}; ${REASONS[term.reason] ?? term.reason}`}
                at={term.endedAt}
              />
            </Timeline.Item>
          ))}
        </Timeline>
      )}
    </section>
  );
}

function Moment({ what, at }: { what: string; at: string | null }) {
  return (
    <Group gap={4}>
      <Text size="sm" c="dimmed">
        {what}
      </Text>
      {at && <Time at={at} />}
    </Group>
  );
}

/** Shows an agent's name if the tenant may see it (`named`), else the beginning of its id. */
function Name({ id, tenantId, named }: { id: string; tenantId: string; named: boolean }) {
  const [{ data }] = useQuery({
    query: AGENT_NAME,
    variables: { tenantId, id },
    pause: !named,
    requestPolicy: "cache-first",
  });
  return <span title={id}>{data?.siteAgent?.name ?? `${id.slice(0, 12)}…`}</span>;
}
