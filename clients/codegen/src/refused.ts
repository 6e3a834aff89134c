// Never run: mistakes that the types must catch. Where one is not an error, the compile fails.
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
  // @ts-expect-error: not selected
  const identity: unknown = viewer.identity;
  // @ts-expect-error: a misspelt argument
  await run(Mint, { input: { tenantId: "acme", siteId: "site_", ttl: 60, idempotencyKey: "k" } });
  // @ts-expect-error: a missing argument
  await run(Revoke, { input: { tenantId: "acme", siteId: "site_" } });
  // @ts-expect-error: a number is no cursor
  await run(Sites, { after: 1 });
  // @ts-expect-error: no such code
  const gone: boolean = error.code === "GONE";
  return { token, identity, gone };
}
