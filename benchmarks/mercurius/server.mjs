// A peer for the benchmarks: serves sites and their tokens from the same tables with Mercurius and its JIT.
// It has the visible fields that the benchmark selects, and no authorization.
// Usage: node server.mjs PORT SOCKET_DIRECTORY
import process from "node:process";
import Fastify from "fastify";
import mercurius from "mercurius";
import pg from "pg";

const [port, host] = process.argv.slice(2);
const pool = new pg.Pool({ host, user: "postgres", database: "bettercompute", max: 10 });

const schema = `
  type Query {
    sites(tenantId: ID, first: Int = 50, after: String): SiteConnection!
    site(tenantId: ID, id: ID!): Site
  }
  type SiteConnection { edges: [SiteEdge!]! pageInfo: PageInfo! }
  type SiteEdge { cursor: String! node: Site! }
  type PageInfo { hasNextPage: Boolean! endCursor: String }
  type Site { id: ID! tenantId: ID! kind: SiteKind! name: String! region: String! revision: Int! createdAt: String!
    siteTokens(first: Int = 50): SiteTokenConnection! }
  type SiteTokenConnection { edges: [SiteTokenEdge!]! }
  type SiteTokenEdge { node: SiteToken! }
  type SiteToken { id: ID! maxUses: Int! uses: Int! createdBy: String! }
  enum SiteKind { SHARED DEDICATED CUSTOM }
`;

const columns = `s.id, s.tenant_id AS "tenantId", upper(s.kind) AS kind, s.name, s.region, s.revision::int,
  to_char(s.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS "createdAt"`;

const page = {
  name: "page",
  text: `SELECT ${columns} FROM sites s JOIN (
      (SELECT site_id FROM site_visibility WHERE viewer_tenant_id = $1 AND listed ORDER BY site_id LIMIT $2)
      UNION
      (SELECT site_id FROM site_visibility WHERE viewer_tenant_id = '*' AND listed ORDER BY site_id LIMIT $2)
    ) v ON v.site_id = s.id ORDER BY s.id LIMIT $2`,
};
const one = { name: "one", text: `SELECT ${columns} FROM sites s WHERE s.id = $1` };
const tokens = {
  name: "tokens",
  text: `SELECT t.* FROM unnest($1::text[]) AS w(site_id) JOIN LATERAL (
      SELECT id, site_id, max_uses AS "maxUses", uses, created_by AS "createdBy" FROM join_tokens
      WHERE join_tokens.site_id = w.site_id AND join_tokens.tenant_id = 'acme'
      ORDER BY created_at DESC, id DESC LIMIT $2) t ON true`,
};

const resolvers = {
  Query: {
    async sites(_root, { tenantId = "acme", first }) {
      const { rows } = await pool.query({ ...page, values: [tenantId, first + 1] });
      const shown = rows.slice(0, first);
      return {
        edges: shown.map((node) => ({ node, cursor: node.id })),
        pageInfo: { hasNextPage: rows.length > first, endCursor: shown.at(-1)?.id ?? null },
      };
    },
    async site(_root, { id }) {
      return (await pool.query({ ...one, values: [id] })).rows[0] ?? null;
    },
  },
};

const loaders = {
  Site: {
    async siteTokens(queries) {
      const first = queries[0].params.first;
      const { rows } = await pool.query({ ...tokens, values: [queries.map(({ obj }) => obj.id), first] });
      const bySite = new Map();
      for (const row of rows) bySite.set(row.site_id, [...(bySite.get(row.site_id) ?? []), { node: row }]);
      return queries.map(({ obj }) => ({ edges: bySite.get(obj.id) ?? [] }));
    },
  },
};

const app = Fastify();
app.register(mercurius, { schema, resolvers, loaders, jit: 1 });
await app.listen({ port: Number(port), host: "127.0.0.1" });
