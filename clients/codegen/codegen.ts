import type { CodegenConfig } from "@graphql-codegen/cli";

const scalars = { ID: "string", DateTime: "string", SecretValue: "string", JSON: "Record<string, unknown>" };

// With `strictScalars`, a new scalar of the schema stops the generation until it is mapped here. It is never `any`.
// An ID accepts strings only, because all ids of this API are strings.
const config: CodegenConfig = {
  schema: "../../schema/schema.graphql",
  documents: ["src/**/*.ts", "!src/generated/**"],
  generates: {
    "src/generated/": {
      preset: "client",
      presetConfig: { fragmentMasking: false },
      config: {
        documentMode: "string",
        strictScalars: true,
        enumsAsTypes: true,
        useTypeImports: true,
        scalars,
      },
    },
    // The preset leaves ErrorCode out: errors have no type in GraphQL, so no document uses it.
    "src/generated/enums.ts": {
      plugins: ["typescript"],
      config: { onlyEnums: true, enumsAsTypes: true, strictScalars: true, scalars },
    },
  },
  importExtension: ".js",
};

export default config;
