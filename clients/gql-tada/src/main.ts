// The main job: who am I, which sites are there, mint a token and revoke it, put a secret, heed an error's code.
// Reads BC_URL and BC_API_KEY, and the secret's value from standard input; writes what came of it as JSON.
import { text } from "node:stream/consumers";
import type { ResultOf } from "gql.tada";
import { client, codeOf, dataOf } from "./client.js";
import { Mint, Put, Revoke, Sites, Viewer } from "./documents.js";

const { BC_URL: url, BC_API_KEY: key } = process.env;
if (!url || !key) throw new Error("BC_URL and BC_API_KEY are needed");
const api = client(url, key);

/** All sites that the caller sees, page by page. */
async function allSites() {
  const found: ResultOf<typeof Sites>["sites"]["nodes"] = [];
  let after: string | null = null;
  do {
    const { sites }: ResultOf<typeof Sites> = dataOf(await api.query(Sites, { after }));
    found.push(...sites.nodes);
    after = sites.pageInfo.hasNextPage ? sites.pageInfo.endCursor : null;
  } while (after !== null);
  return found;
}

/** Puts the first version of a secret; null if there is one already. */
async function putNew(tenantId: string, name: string, value: string) {
  const answer = await api.mutation(Put, { input: { tenantId, name, value, expectedVersion: 0 } });
  if (answer.error && codeOf(answer.error) === "CONFLICT") return null;
  return dataOf(answer).putSecret;
}

const { viewer } = dataOf(await api.query(Viewer, {}));
const { tenantId } = viewer;
const sites = await allSites();
const own = sites.find((site) => site.kind === "CUSTOM");
if (!own) throw new Error("the caller's tenant has no site of its own");

const input = { tenantId, siteId: own.id, ttlSeconds: 3600, idempotencyKey: "rack-1" };
const minted = dataOf(await api.mutation(Mint, { input })).createSiteToken;
const replayed = dataOf(await api.mutation(Mint, { input })).createSiteToken;
const revoke = { tenantId, siteId: own.id, tokenId: minted.siteToken.id };
const revoked = dataOf(await api.mutation(Revoke, { input: revoke })).revokeSiteToken.siteToken;

const value = await text(process.stdin);
const put = await putNew(tenantId, "bmc/rack-1", value);
const again = await putNew(tenantId, "bmc/rack-1", value);

console.log(JSON.stringify({ viewer, sites, minted, replayed, revoked, put, again }));
