// Does the main tasks of the API: reads the caller and all sites, mints a token, repeats the mint, revokes the token,
// puts a secret, and handles the CONFLICT of a second put. Reads BC_URL and BC_API_KEY from the environment and the
// secret's value from standard input. Writes all results as JSON to standard output.
import { text } from "node:stream/consumers";
import { ApiError, client } from "./client.js";
import { Mint, Put, Revoke, Sites, Viewer } from "./documents.js";
import type { PutMutation, SitesQuery } from "./generated/graphql.js";

const { BC_URL: url, BC_API_KEY: key } = process.env;
if (!url || !key) throw new Error("BC_URL and BC_API_KEY are needed");
const run = client(url, key);

/** Returns all sites that the caller sees, read page by page. */
async function allSites() {
  const all: SitesQuery["sites"]["nodes"] = [];
  let after: string | null = null;
  do {
    const { sites }: SitesQuery = await run(Sites, { after });
    all.push(...sites.nodes);
    after = sites.pageInfo.hasNextPage ? sites.pageInfo.endCursor : null;
  } while (after !== null);
  return all;
}

/** Puts the first version of a secret. Returns null if the secret exists already. */
async function putNew(tenantId: string, name: string, value: string): Promise<PutMutation["putSecret"] | null> {
  try {
    return (await run(Put, { input: { tenantId, name, value, expectedVersion: 0 } })).putSecret;
  } catch (error) {
    if (error instanceof ApiError && error.code === "CONFLICT") return null;
    throw error;
  }
}

const { viewer } = await run(Viewer, {});
const { tenantId } = viewer;
const sites = await allSites();
const own = sites.find((site) => site.kind === "CUSTOM");
if (!own) throw new Error("the caller's tenant has no site of its own");

const input = { tenantId, siteId: own.id, ttlSeconds: 3600, idempotencyKey: "rack-1" };
const minted = (await run(Mint, { input })).createSiteToken;
const replayed = (await run(Mint, { input })).createSiteToken;
const tokenId = minted.siteToken.id;
const revoked = (await run(Revoke, { input: { tenantId, siteId: own.id, tokenId } })).revokeSiteToken.siteToken;

const value = await text(process.stdin);
const put = await putNew(tenantId, "bmc/rack-1", value);
const again = await putNew(tenantId, "bmc/rack-1", value);

console.log(JSON.stringify({ viewer, sites, minted, replayed, revoked, put, again }));
