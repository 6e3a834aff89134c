import type { CodegenConfig } from "@graphql-codegen/cli";

// Generates types for every GraphQL document of the console from the exported schema. The output is not committed.
const config: CodegenConfig = {
  schema: "../schema/schema.graphql",
  documents: ["src/**/*.{ts,tsx}", "!src/generated/**"],
  ignoreNoDocuments: true,
  generates: {
    "src/generated/": {
      preset: "client",
      presetConfig: { fragmentMasking: false },
      config: {
        strictScalars: true,
        useTypeImports: true,
        enumsAsTypes: true,
        scalars: { DateTime: "string", SecretValue: "string", JSON: "Record<string, unknown>" },
      },
    },
  },
};

export default config;
