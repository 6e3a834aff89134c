import type { CodegenConfig } from "@graphql-codegen/cli";

const scalars = { ID: "string", DateTime: "string", SecretValue: "string", JSON: "Record<string, unknown>" };

// `strictScalars`: a new scalar of the schema stops the generation until it is mapped here, and is never `any`.
// An ID goes out as a string alone, which is what all ids of this API are.
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
    // ErrorCode is used by no document, as errors have no type in GraphQL, so the preset leaves it out.
    "src/generated/enums.ts": {
      plugins: ["typescript"],
      config: { onlyEnums: true, enumsAsTypes: true, strictScalars: true, scalars },
    },
  },
  importExtension: ".js",
};

export default config;
