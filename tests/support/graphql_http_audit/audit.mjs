// Audits a server against the GraphQL-over-HTTP specification: node audit.mjs URL, the API key in BC_API_KEY.
// Prints each finding, then a line such as "61 ok, 0 warnings, 0 errors"; exits 1 unless all are ok.
import process from "node:process";
import { auditServer } from "graphql-http";

const url = process.argv[2];
if (!url) {
  console.error("usage: BC_API_KEY=... node audit.mjs http://127.0.0.1:8080/graphql");
  process.exit(2);
}
const key = process.env.BC_API_KEY;

function fetchAsCaller(input, init = {}) {
  const headers = new Headers(init.headers);
  if (key) headers.set("authorization", `Bearer ${key}`);
  return fetch(input, { ...init, headers });
}

const found = await auditServer({ url, fetchFn: fetchAsCaller });
const counts = { ok: 0, warn: 0, error: 0, notice: 0 };
for (const result of found) {
  counts[result.status] += 1;
  if (result.status !== "ok") console.log(`${result.status} ${result.id} ${result.name}: ${result.reason}`);
}
console.log(`${counts.ok} ok, ${counts.warn + counts.notice} warnings, ${counts.error} errors`);
process.exitCode = counts.ok === found.length && found.length > 0 ? 0 : 1;
