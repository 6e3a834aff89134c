import { Anchor, Badge, Box, Button, Card, Code, Group, SimpleGrid, Stack, Text, Title } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import { useState } from "react";
import { useQuery } from "urql";
import { Link, useLocation } from "wouter";

import { DELETE_SITE, SITE } from "../api/documents";
import { failureOf } from "../api/failure";
import { useLive } from "../api/live";
import { useMutate } from "../api/mutate";
import { useSession } from "../api/session";
import type { JoinTokenState, SiteQuery } from "../generated/graphql";
import { Agents } from "../parts/Agents";
import { BootLease } from "../parts/BootLease";
import { Confirm } from "../parts/Confirm";
import { Grants } from "../parts/Grants";
import { Labels } from "../parts/Labels";
import { Listing } from "../parts/Listing";
import { MintToken } from "../parts/MintToken";
import { FailureNotice, Loading } from "../parts/Notices";
import { usePager } from "../parts/Pager";
import { RevokeToken } from "../parts/RevokeToken";
import { SiteForm } from "../parts/SiteForm";
import { Time } from "../parts/Time";
import { KIND_COLORS } from "./Sites";

type SiteDetail = NonNullable<SiteQuery["site"]>;
type Token = SiteDetail["siteTokens"]["nodes"][number];

const STATE_COLORS: Record<JoinTokenState, string> = {
  ACTIVE: "green",
  EXHAUSTED: "gray",
  EXPIRED: "gray",
  REVOKED: "red",
};

/** The page of one site: its properties, tokens, agents, granted secrets and boot lease. */
export function Site({ id }: { id: string }) {
  const { tenantId, may } = useSession();
  const [, navigate] = useLocation();
  const mutate = useMutate();
  const [dialog, setDialog] = useState<"edit" | "delete" | "mint" | Token | null>(null);
  const pager = usePager(id);
  const [{ data, error, fetching }, query] = useQuery({
    query: SITE,
    variables: { tenantId, id, after: pager.after },
  });
  const refresh = () => query({ requestPolicy: "network-only" });
  useLive(refresh, id);
  const site = data?.site;
  useDocumentTitle(`${site?.name ?? "Site"} · Better Compute`);
  if (error && !site) return <FailureNotice failure={failureOf(error)} onRetry={refresh} />;
  if (!site) return fetching ? <Loading what="the site" /> : null;
  const manages = may("compute:sites:manage") && site.tenantId === tenantId && !site.deletedAt;
  const close = () => setDialog(null);
  return (
    <Stack gap="lg">
      <Anchor component={Link} href="/" size="sm">
        ← Sites
      </Anchor>
      <Group justify="space-between">
        <Group gap="sm">
          <Title order={1} size="h2">
            {site.name}
          </Title>
          <Badge variant="light" color={KIND_COLORS[site.kind]}>
            {site.kind.toLowerCase()}
          </Badge>
          {site.deletedAt && <Badge color="red">deleted</Badge>}
        </Group>
        {manages && (
          <Group gap="xs">
            <Button variant="default" onClick={() => setDialog("edit")}>
              Edit
            </Button>
            <Button variant="default" c="red" onClick={() => setDialog("delete")}>
              Delete
            </Button>
          </Group>
        )}
      </Group>
      <Card withBorder>
        <SimpleGrid cols={{ base: 1, xs: 2, md: 4 }}>
          <Fact name="Id">
            <Code style={{ overflowWrap: "anywhere" }}>{site.id}</Code>
          </Fact>
          <Fact name="Region">{site.region}</Fact>
          <Fact name="Owner">
            {site.tenantId}
            {site.dedicatedTo && `, for ${site.dedicatedTo}`}
          </Fact>
          <Fact name="Changed">
            <Time at={site.updatedAt} />
          </Fact>
        </SimpleGrid>
        {site.labels.length > 0 && (
          <Box mt="md">
            <Labels labels={site.labels} />
          </Box>
        )}
      </Card>
      {site.tenantId === tenantId ? (
        <>
          <Tokens site={site} pager={pager} manages={manages} onMint={() => setDialog("mint")} onRevoke={setDialog} />
          <Agents tenantId={tenantId} siteId={id} holderId={site.bootLease.holderAgentId} manages={manages} />
        </>
      ) : (
        <Text c="dimmed">The tokens and agents of this site are its owner&apos;s.</Text>
      )}
      {may("compute:secrets:read") && [site.tenantId, site.dedicatedTo].includes(tenantId) && (
        <Grants siteId={id} open={!site.deletedAt} />
      )}
      <BootLease lease={site.bootLease} tenantId={tenantId} named={site.tenantId === tenantId} />
      {dialog === "edit" && (
        <SiteForm
          site={site}
          onClose={close}
          onDone={() => {
            close();
            refresh();
          }}
        />
      )}
      {dialog === "mint" && <MintToken tenantId={tenantId} siteId={id} onClose={close} onMinted={refresh} />}
      {dialog === "delete" && (
        <Confirm
          title={`Delete ${site.name}?`}
          verb="Delete site"
          onClose={close}
          act={async () => {
            const input = { tenantId, siteId: id, expectedRevision: site.revision };
            const { failure } = await mutate(DELETE_SITE, { input });
            if (!failure) navigate("/");
            return failure;
          }}
        >
          Its tokens stop working at once, and nobody else sees it any more. Its record stays for your audit.
        </Confirm>
      )}
      {dialog !== null && typeof dialog === "object" && (
        <RevokeToken tenantId={tenantId} token={dialog} onClose={close} onRevoked={refresh} />
      )}
    </Stack>
  );
}

function Fact({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <div>
      <Text size="xs" c="dimmed">
        {name}
      </Text>
      <Text size="sm" component="div">
        {children}
      </Text>
    </div>
  );
}

function Tokens(props: {
  site: SiteDetail;
  pager: ReturnType<typeof usePager>;
  manages: boolean;
  onMint: () => void;
  onRevoke: (token: Token) => void;
}) {
  return (
    <section aria-labelledby="tokens">
      <Group justify="space-between" mb="xs">
        <Title order={2} size="h3" id="tokens">
          Site tokens
        </Title>
        {props.manages && <Button onClick={props.onMint}>Mint token</Button>}
      </Group>
      <Listing
        list={props.site.siteTokens}
        pager={props.pager}
        nouns={["token", "tokens"]}
        empty="No token yet. Mint one to enrol agents."
        id={(token) => token.id}
        columns={[
          {
            head: "State",
            cell: ({ state }) => (
              <Badge variant="light" color={STATE_COLORS[state]}>
                {state.toLowerCase()}
              </Badge>
            ),
          },
          {
            head: "Token",
            cell: ({ id, allowedCidrs }) => (
              <>
                <Code title={id}>{id.slice(0, 11)}…</Code>
                {allowedCidrs && (
                  <Text size="xs" c="dimmed">
                    from {allowedCidrs.join(", ")}
                  </Text>
                )}
              </>
            ),
          },
          { head: "Uses", cell: ({ uses, maxUses }) => `${uses} / ${maxUses}` },
          { head: "Expires", cell: ({ expiresAt }) => <Time at={expiresAt} /> },
          { head: "Last used", from: "sm", cell: ({ lastUsedAt }) => <Time at={lastUsedAt} /> },
          {
            cell: (token) =>
              props.manages &&
              token.state !== "REVOKED" && (
                <Button size="xs" variant="default" onClick={() => props.onRevoke(token)}>
                  Revoke
                </Button>
              ),
          },
        ]}
      />
    </section>
  );
}
