// Lists mistakes that the types must catch. This code is compiled and never run. If the compiler accepts one of the
// mistakes, the compilation fails.
import type { Client } from "@urql/core";
import type { ResultOf } from "gql.tada";
import { Mint, Revoke, Sites, type Viewer } from "./documents.js";
import type { ErrorCode } from "./graphql.js";

export async function refused(
  api: Client,
  { viewer }: ResultOf<typeof Viewer>,
  { createSiteToken }: ResultOf<typeof Mint>,
  code: ErrorCode,
) {
  // @ts-expect-error: a replay has no token
  const token: string = createSiteToken.token;
  // @ts-expect-error: a field that the query does not select
  const identity: unknown = viewer.identity;
  // @ts-expect-error: a misspelt argument
  await api.mutation(Mint, { input: { tenantId: "acme", siteId: "site_", ttl: 60, idempotencyKey: "k" } });
  // @ts-expect-error: a missing argument
  await api.mutation(Revoke, { input: { tenantId: "acme", siteId: "site_" } });
  // @ts-expect-error: a cursor that is a number
  await api.query(Sites, { after: 1 });
  // @ts-expect-error: a code that does not exist
  const gone: boolean = code === "GONE";
  return { token, identity, gone };
}
