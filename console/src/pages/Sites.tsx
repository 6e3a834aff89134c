import { Anchor, Badge, Button, Group, Select, Stack, Table, TextInput, Title } from "@mantine/core";
import { useDebouncedValue, useDocumentTitle } from "@mantine/hooks";
import { useState } from "react";
import { useQuery } from "urql";
import { Link, useLocation } from "wouter";

import { SITES } from "../api/documents";
import { failureOf } from "../api/failure";
import { useLive } from "../api/live";
import { useSession } from "../api/session";
import type { SiteFilter, SiteKind } from "../generated/graphql";
import { Empty, FailureNotice, Loading } from "../parts/Notices";
import { Pager, usePager } from "../parts/Pager";
import { SiteForm } from "../parts/SiteForm";
import { Time } from "../parts/Time";

export const KIND_COLORS: Record<SiteKind, string> = { SHARED: "blue", DEDICATED: "grape", CUSTOM: "teal" };

/** The sites that the tenant sees. */
export function Sites() {
  const { tenantId, may } = useSession();
  useDocumentTitle("Sites · Better Compute");
  const [, navigate] = useLocation();
  const [search, setSearch] = useState("");
  const [kind, setKind] = useState<string | null>(null);
  const [order, setOrder] = useState<string>("NAME");
  const [creating, setCreating] = useState(false);
  const [term] = useDebouncedValue(search.trim(), 250);
  const filter: SiteFilter = {
    ...(term && { nameContains: term }),
    ...(kind && { kinds: [kind as SiteKind] }),
  };
  const pager = usePager(JSON.stringify([tenantId, filter, order]));
  const [{ data, error, fetching }, refresh] = useQuery({
    query: SITES,
    variables: {
      tenantId,
      first: 20,
      after: pager.after,
      filter,
      orderBy: { field: order as "NAME" | "CREATED_AT", direction: order === "NAME" ? "ASC" : "DESC" },
    },
  });
  useLive(() => refresh({ requestPolicy: "network-only" }));
  return (
    <Stack>
      <Group justify="space-between">
        <Title order={1} size="h2">
          Sites
        </Title>
        {may("compute:sites:manage") && <Button onClick={() => setCreating(true)}>New site</Button>}
      </Group>
      <Group align="end" role="search">
        <TextInput
          label="Search"
          placeholder="Name contains…"
          value={search}
          flex="1 1 12rem"
          onChange={(event) => setSearch(event.currentTarget.value)}
        />
        <Select
          label="Kind"
          placeholder="All"
          clearable
          w={150}
          data={[
            { value: "SHARED", label: "Shared" },
            { value: "DEDICATED", label: "Dedicated" },
            { value: "CUSTOM", label: "Custom" },
          ]}
          value={kind}
          onChange={setKind}
        />
        <Select
          label="Order"
          allowDeselect={false}
          w={150}
          data={[
            { value: "NAME", label: "By name" },
            { value: "CREATED_AT", label: "Newest first" },
          ]}
          value={order}
          onChange={(value) => setOrder(value ?? "NAME")}
        />
      </Group>
      {error && <FailureNotice failure={failureOf(error)} onRetry={() => refresh({ requestPolicy: "network-only" })} />}
      {fetching && !data && <Loading what="sites" />}
      {data?.sites.nodes.length === 0 && (
        <Empty>{term || kind ? "No site matches." : "No site yet. Create the first one."}</Empty>
      )}
      {data && data.sites.nodes.length > 0 && (
        <>
          <Table.ScrollContainer minWidth={340}>
            <Table highlightOnHover verticalSpacing="sm">
              <Table.Thead>
                <Table.Tr>
                  <Table.Th>Name</Table.Th>
                  <Table.Th>Kind</Table.Th>
                  <Table.Th>Region</Table.Th>
                  <Table.Th visibleFrom="sm">Labels</Table.Th>
                  <Table.Th visibleFrom="sm">Created</Table.Th>
                </Table.Tr>
              </Table.Thead>
              <Table.Tbody>
                {data.sites.nodes.map((site) => (
                  <Table.Tr key={site.id}>
                    <Table.Td>
                      <Anchor component={Link} href={`/sites/${site.id}`} fw={500}>
                        {site.name}
                      </Anchor>
                    </Table.Td>
                    <Table.Td>
                      <Badge variant="light" color={KIND_COLORS[site.kind]}>
                        {site.kind.toLowerCase()}
                      </Badge>
                    </Table.Td>
                    <Table.Td>{site.region}</Table.Td>
                    <Table.Td visibleFrom="sm">
                      <Group gap={4}>
                        {site.labels.map(({ key, value }) => (
                          <Badge key={key} variant="default" tt="none" fw={400}>
                            {key}={value}
                          </Badge>
                        ))}
                      </Group>
                    </Table.Td>
                    <Table.Td visibleFrom="sm">
                      <Time at={site.createdAt} />
                    </Table.Td>
                  </Table.Tr>
                ))}
              </Table.Tbody>
            </Table>
          </Table.ScrollContainer>
          <Pager pager={pager} total={data.sites.totalCount} nouns={["site", "sites"]} pageInfo={data.sites.pageInfo} />
        </>
      )}
      {creating && <SiteForm onClose={() => setCreating(false)} onDone={(id) => navigate(`/sites/${id}`)} />}
    </Stack>
  );
}
