import { Client, type CombinedError, fetchExchange, type OperationResult } from "@urql/core";
import type { ErrorCode } from "./graphql.js";

/** Creates a client of the server at `url` that sends the API key `key` and caches no answer. */
export function client(url: string, key: string): Client {
  return new Client({
    url: `${url}/graphql`,
    exchanges: [fetchExchange],
    fetchOptions: { headers: { Authorization: `Bearer ${key}` } },
    preferGetMethod: false,
  });
}

/** Returns the data of an answer. Throws urql's CombinedError if the answer has an error. */
export function dataOf<Data>({ data, error }: OperationResult<Data>): Data {
  if (error) throw error;
  if (!data) throw new Error("neither data nor error");
  return data;
}

/** Returns the code of an API error, or undefined if no GraphQL answer arrived. */
export function codeOf({ graphQLErrors }: CombinedError): ErrorCode | undefined {
  return graphQLErrors[0]?.extensions.code as ErrorCode | undefined;
}
