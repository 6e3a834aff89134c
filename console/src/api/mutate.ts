import type { TypedDocumentNode } from "@graphql-typed-document-node/core";
import { useCallback } from "react";
import { useClient } from "urql";

import { type Failure, failureOf } from "./failure";

export type Outcome<Data> = { data: Data; failure: null } | { data: null; failure: Failure };

/**
 * Runs mutations without keeping their results anywhere: a token or value must not outlive the handler that asked.
 */
export function useMutate() {
  const client = useClient();
  return useCallback(
    async <Data, Variables extends Record<string, unknown>>(
      document: TypedDocumentNode<Data, Variables>,
      variables: Variables,
    ): Promise<Outcome<Data>> => {
      const { data, error } = await client.mutation<Data, Variables>(document, variables).toPromise();
      if (error || !data) return { data: null, failure: failureOf(error) };
      return { data, failure: null };
    },
    [client],
  );
}
