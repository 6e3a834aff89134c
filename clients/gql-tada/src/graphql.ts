import { initGraphQLTada } from "gql.tada";
import type { introspection } from "./generated/graphql-env.js";

/** Types documents against the exported schema. A scalar that is not listed here is typed `unknown`, never `any`. */
export const graphql = initGraphQLTada<{
  introspection: introspection;
  disableMasking: true;
  scalars: { ID: string; DateTime: string; SecretValue: string; JSON: Record<string, unknown> };
}>();

export type ErrorCode = ReturnType<typeof graphql.scalar<"ErrorCode">>;
