import { Anchor, Badge, Button, Group, Select, Stack, TextInput, Title } from "@mantine/core";
import { useDebouncedValue, useDocumentTitle } from "@mantine/hooks";
import { useState } from "react";
import { useQuery } from "urql";
import { Link, useLocation } from "wouter";

import { SITES } from "../api/documents";
import { useLive } from "../api/live";
import { useSession } from "../api/session";
import type { SiteFilter, SiteKind } from "../generated/graphql";
import { Labels } from "../parts/Labels";
import { Listing } from "../parts/Listing";
import { usePager } from "../parts/Pager";
import { SiteForm } from "../parts/SiteForm";
import { Time } from "../parts/Time";

export const KIND_COLORS: Record<SiteKind, string> = { SHARED: "blue", DEDICATED: "grape", CUSTOM: "teal" };

/** The page of sites: lists those that the tenant sees, with search and filter. */
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
  const [{ data, error }, query] = useQuery({
    query: SITES,
    variables: {
      tenantId,
      first: 20,
      after: pager.after,
      filter,
      orderBy: { field: order as "NAME" | "CREATED_AT", direction: order === "NAME" ? "ASC" : "DESC" },
    },
  });
  const refresh = () => query({ requestPolicy: "network-only" });
  useLive(refresh);
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
      <Listing
        list={data?.sites}
        error={error}
        onRetry={refresh}
        pager={pager}
        nouns={["site", "sites"]}
        empty={term || kind ? "No site matches." : "No site yet. Create the first one."}
        id={(site) => site.id}
        columns={[
          {
            head: "Name",
            cell: ({ id, name }) => (
              <Anchor component={Link} href={`/sites/${id}`} fw={500} size="sm">
                {name}
              </Anchor>
            ),
          },
          {
            head: "Kind",
            cell: ({ kind }) => (
              <Badge variant="light" color={KIND_COLORS[kind]}>
                {kind.toLowerCase()}
              </Badge>
            ),
          },
          { head: "Region", cell: ({ region }) => region },
          { head: "Labels", from: "sm", cell: ({ labels }) => <Labels labels={labels} /> },
          { head: "Created", from: "sm", cell: ({ createdAt }) => <Time at={createdAt} /> },
        ]}
      />
      {creating && <SiteForm onClose={() => setCreating(false)} onDone={(id) => navigate(`/sites/${id}`)} />}
    </Stack>
  );
}
