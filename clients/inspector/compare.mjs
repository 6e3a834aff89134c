// Compares two schemas for changes that break clients: node compare.mjs RELEASED CURRENT
// Prints each change that is not safe, then a line such as "0 breaking, 0 dangerous, 2 safe". Exits with 1 if a change
// is breaking. Fields that the release marked as deprecated may be removed. Changes of descriptions are ignored.
import { readFile } from "node:fs/promises";
import process from "node:process";
import { CriticalityLevel, diff, DiffRule } from "@graphql-inspector/core";
import { buildSchema } from "graphql";

const [released, current] = process.argv.slice(2);
if (!released || !current) {
  console.error("usage: node compare.mjs released.graphql schema.graphql");
  process.exit(2);
}
const schemaOf = async (path) => buildSchema(await readFile(path, "utf8"));
const changes = await diff(await schemaOf(released), await schemaOf(current), [
  DiffRule.ignoreDescriptionChanges,
  DiffRule.suppressRemovalOfDeprecatedField,
]);
const { Breaking, Dangerous, NonBreaking } = CriticalityLevel;
const changesOf = (level) => changes.filter(({ criticality }) => criticality.level === level);
for (const level of [Breaking, Dangerous]) {
  for (const { message } of changesOf(level)) console.log(`${level.toLowerCase()}: ${message}`);
}
const [breaking, dangerous, safe] = [Breaking, Dangerous, NonBreaking].map((level) => changesOf(level).length);
console.log(`${breaking} breaking, ${dangerous} dangerous, ${safe} safe`);
process.exitCode = breaking ? 1 : 0;
