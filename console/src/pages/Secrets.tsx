import { Button, Code, Group, SegmentedControl, Stack, Text, Title } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import { useState } from "react";
import { useQuery } from "urql";

import { SECRETS } from "../api/documents";
import { useSession } from "../api/session";
import type { SecretScope } from "../generated/graphql";
import { Listing } from "../parts/Listing";
import { usePager } from "../parts/Pager";
import { PutSecret } from "../parts/PutSecret";
import { Time } from "../parts/Time";

/** The page of secrets: lists their metadata. Values are entered in a dialog and never shown. */
export function Secrets() {
  const { tenantId, viewer, may } = useSession();
  useDocumentTitle("Secrets · Better Compute");
  const [scope, setScope] = useState<SecretScope>("TENANT");
  const [putting, setPutting] = useState<{ name?: string } | null>(null);
  const pager = usePager(`${tenantId} ${scope}`);
  const [{ data, error }, query] = useQuery({
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
      <Listing
        list={data?.secrets}
        error={error}
        onRetry={refresh}
        pager={pager}
        nouns={["secret", "secrets"]}
        empty="No secret yet."
        id={(secret) => secret.reference}
        columns={[
          {
            head: "Name",
            cell: ({ name }) => (
              <Text size="sm" fw={500}>
                {name}
              </Text>
            ),
          },
          { head: "Reference", from: "sm", cell: ({ reference }) => <Code>{reference}</Code> },
          { head: "Version", cell: ({ version }) => version },
          { head: "Put", cell: ({ updatedAt }) => <Time at={updatedAt} /> },
          {
            cell: ({ name }) =>
              manages && (
                <Button size="xs" variant="default" onClick={() => setPutting({ name })}>
                  New version
                </Button>
              ),
          },
        ]}
      />
      {putting && <PutSecret {...putting} onClose={() => setPutting(null)} onPut={refresh} />}
    </Stack>
  );
}
