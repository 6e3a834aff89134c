import { Client, type CombinedError, fetchExchange, type OperationResult } from "@urql/core";
import type { ErrorCode } from "./graphql.js";

/** A client of the server at `url` that calls as the one whose API key `key` is, and keeps no answer. */
export function client(url: string, key: string): Client {
  return new Client({
    url: `${url}/graphql`,
    exchanges: [fetchExchange],
    fetchOptions: { headers: { Authorization: `Bearer ${key}` } },
    preferGetMethod: false,
  });
}

/** The data of an answer; throws urql's CombinedError if there is an error in it. */
export function dataOf<Data>({ data, error }: OperationResult<Data>): Data {
  if (error) throw error;
  if (!data) throw new Error("neither data nor error");
  return data;
}

/** The code of what the API refused; undefined if no GraphQL answer came. */
export function codeOf({ graphQLErrors }: CombinedError): ErrorCode | undefined {
  return graphQLErrors[0]?.extensions.code as ErrorCode | undefined;
}
