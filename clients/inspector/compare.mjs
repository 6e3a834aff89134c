// Compares two schemas as clients see them: node compare.mjs RELEASED CURRENT
// Prints each change that is not safe, then a line such as "0 breaking, 0 dangerous, 2 safe"; exits 1 if one breaks.
// What the release marked as deprecated may go; words of descriptions are free.
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
const of = (level) => changes.filter(({ criticality }) => criticality.level === level);
for (const level of [Breaking, Dangerous]) {
  for (const { message } of of(level)) console.log(`${level.toLowerCase()}: ${message}`);
}
console.log(`${of(Breaking).length} breaking, ${of(Dangerous).length} dangerous, ${of(NonBreaking).length} safe`);
process.exitCode = of(Breaking).length ? 1 : 0;
