import { Badge, Box, Code, Group, Select, Stack, Text, TextInput, Title } from "@mantine/core";
import { useDebouncedValue, useDocumentTitle } from "@mantine/hooks";
import { useState } from "react";
import { useQuery } from "urql";

import { AUDIT_EVENTS } from "../api/documents";
import { useSession } from "../api/session";
import type { AuditDecision, AuditFilter } from "../generated/graphql";
import { Listing } from "../parts/Listing";
import { usePager } from "../parts/Pager";
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

/** The page of the audit trail: lists who did or attempted which operation, with filters. */
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
  const [{ data, error }, query] = useQuery({
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
      <Listing
        list={data?.auditEvents}
        error={error}
        onRetry={() => query({ requestPolicy: "network-only" })}
        pager={pager}
        nouns={["entry", "entries"]}
        empty="Nothing here."
        id={(event) => event.id}
        columns={[
          { head: "When", cell: ({ time }) => <Time at={time} /> },
          { head: "Operation", cell: ({ operation }) => operation },
          {
            head: "Outcome",
            cell: ({ outcome }) => (
              <Badge variant="light" color={outcome === "ok" ? "green" : "red"} miw="max-content">
                {outcome.toLowerCase().replaceAll("_", " ")}
              </Badge>
            ),
          },
          {
            head: "Resource and details",
            from: "sm",
            width: "40%",
            cell: (event) => (
              <Box miw={220} style={{ overflowWrap: "anywhere" }}>
                <Text size="sm">{event.resource}</Text>
                {Object.entries(event.data).map(([name, value]) => (
                  <Text size="xs" c="dimmed" key={name}>
                    {name}: {String(value)}
                  </Text>
                ))}
              </Box>
            ),
          },
          { head: "Actor", from: "md", cell: ({ actor }) => <Code>{actor}</Code> },
        ]}
      />
    </Stack>
  );
}
