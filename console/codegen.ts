import type { CodegenConfig } from "@graphql-codegen/cli";

// The client preset types every document against the exported schema; what it writes is never committed.
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
