// Lists mistakes that the types must catch. This code is compiled and never run. If the compiler accepts one of the
// mistakes, the compilation fails.
import type { ApiError, client } from "./client.js";
import { Mint, Revoke, Sites } from "./documents.js";
import type { MintMutation, ViewerQuery } from "./generated/graphql.js";

export async function refused(
  run: ReturnType<typeof client>,
  { viewer }: ViewerQuery,
  { createSiteToken }: MintMutation,
  error: ApiError,
) {
  // @ts-expect-error: a replay has no token
  const token: string = createSiteToken.token;
  // @ts-expect-error: a field that the query does not select
  const identity: unknown = viewer.identity;
  // @ts-expect-error: a misspelt argument
  await run(Mint, { input: { tenantId: "acme", siteId: "site_", ttl: 60, idempotencyKey: "k" } });
  // @ts-expect-error: a missing argument
  await run(Revoke, { input: { tenantId: "acme", siteId: "site_" } });
  // @ts-expect-error: a cursor that is a number
  await run(Sites, { after: 1 });
  // @ts-expect-error: a code that does not exist
  const gone: boolean = error.code === "GONE";
  return { token, identity, gone };
}
