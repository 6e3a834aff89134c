import type { TypedDocumentNode } from "@graphql-typed-document-node/core";
import { useCallback } from "react";
import { useClient } from "urql";

import { type Failure, failureOf } from "./failure";

export type Outcome<Data> = { data: Data; failure: null } | { data: null; failure: Failure };

/**
 * Returns a function that runs a mutation and keeps its result nowhere. A token or a secret's value must not outlive
 * the event handler that requested it.
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
