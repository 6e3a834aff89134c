import { Badge, Code, Group, Select, Stack, Table, Text, TextInput, Title } from "@mantine/core";
import { useDebouncedValue, useDocumentTitle } from "@mantine/hooks";
import { useState } from "react";
import { useQuery } from "urql";

import { AUDIT_EVENTS } from "../api/documents";
import { failureOf } from "../api/failure";
import { useSession } from "../api/session";
import type { AuditDecision, AuditFilter } from "../generated/graphql";
import { Empty, FailureNotice, Loading } from "../parts/Notices";
import { Pager, usePager } from "../parts/Pager";
import { Time } from "../parts/Time";

const OPERATIONS = [
  "sites.create",
  "sites.update",
  "sites.delete",
  "siteTokens.create",
  "siteTokens.revoke",
  "siteAgents.enroll",
  "siteAgents.revoke",
  "secrets.put",
  "secrets.grant",
  "secrets.revokeGrant",
];

/** Who did or tried what. */
export function Audit() {
  const { tenantId } = useSession();
  useDocumentTitle("Audit trail · Better Compute");
  const [actor, setActor] = useState("");
  const [resource, setResource] = useState("");
  const [operation, setOperation] = useState<string | null>(null);
  const [decision, setDecision] = useState<string | null>(null);
  const [[byActor, byResource]] = useDebouncedValue([actor.trim(), resource.trim()] as const, 300);
  const filter: AuditFilter = {
    ...(byActor && { actor: byActor }),
    ...(byResource && { resource: byResource }),
    ...(operation && { operation }),
    ...(decision && { decision: decision as AuditDecision }),
  };
  const pager = usePager(JSON.stringify([tenantId, filter]));
  const [{ data, error, fetching }, query] = useQuery({
    query: AUDIT_EVENTS,
    variables: { tenantId, after: pager.after, filter },
  });
  return (
    <Stack>
      <Title order={1} size="h2">
        Audit trail
      </Title>
      <Group align="end" role="search">
        <Select
          label="Operation"
          placeholder="All"
          clearable
          w={180}
          data={OPERATIONS}
          value={operation}
          onChange={setOperation}
        />
        <Select
          label="Decision"
          placeholder="All"
          clearable
          w={130}
          data={[
            { value: "ALLOW", label: "Allowed" },
            { value: "DENY", label: "Denied" },
          ]}
          value={decision}
          onChange={setDecision}
        />
        <TextInput
          label="Actor"
          placeholder="idn_…"
          flex="1 1 10rem"
          value={actor}
          onChange={(event) => setActor(event.currentTarget.value)}
        />
        <TextInput
          label="Resource"
          placeholder="compute-site/site_…"
          flex="1 1 10rem"
          value={resource}
          onChange={(event) => setResource(event.currentTarget.value)}
        />
      </Group>
      {error && (
        <FailureNotice failure={failureOf(error)} onRetry={() => query({ requestPolicy: "network-only" })} />
      )}
      {fetching && !data && <Loading what="the audit trail" />}
      {data?.auditEvents.nodes.length === 0 && <Empty>Nothing here.</Empty>}
      {data && data.auditEvents.nodes.length > 0 && (
        <>
          <Table.ScrollContainer minWidth={340}>
            <Table verticalSpacing="xs">
              <Table.Thead>
                <Table.Tr>
                  <Table.Th>When</Table.Th>
                  <Table.Th>Operation</Table.Th>
                  <Table.Th>Outcome</Table.Th>
                  <Table.Th visibleFrom="sm" w="40%">Resource and details</Table.Th>
                  <Table.Th visibleFrom="md">Actor</Table.Th>
                </Table.Tr>
              </Table.Thead>
              <Table.Tbody>
                {data.auditEvents.nodes.map((event) => (
                  <Table.Tr key={event.id}>
                    <Table.Td>
                      <Time at={event.time} />
                    </Table.Td>
                    <Table.Td>{event.operation}</Table.Td>
                    <Table.Td>
                      <Badge variant="light" color={event.outcome === "ok" ? "green" : "red"} miw="max-content">
                        {event.outcome.toLowerCase().replaceAll("_", " ")}
                      </Badge>
                    </Table.Td>
                    <Table.Td visibleFrom="sm" miw={240} style={{ overflowWrap: "anywhere" }}>
                      <Text size="sm">{event.resource}</Text>
                      {Object.entries(event.data).map(([name, value]) => (
                        <Text size="xs" c="dimmed" key={name}>
                          {name}: {String(value)}
                        </Text>
                      ))}
                    </Table.Td>
                    <Table.Td visibleFrom="md">
                      <Code>{event.actor}</Code>
                    </Table.Td>
                  </Table.Tr>
                ))}
              </Table.Tbody>
            </Table>
          </Table.ScrollContainer>
          <Pager pager={pager} total={data.auditEvents.totalCount} nouns={["entry", "entries"]} pageInfo={data.auditEvents.pageInfo} />
        </>
      )}
    </Stack>
  );
}
