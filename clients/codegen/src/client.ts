import type { ErrorCode } from "./generated/enums.js";
import type { TypedDocumentString } from "./generated/graphql.js";

/** What the API refused, by its code; the message names no value that was sent. */
export class ApiError extends Error {
  constructor(
    readonly code: ErrorCode,
    message: string,
  ) {
    super(message);
  }
}

interface Answer<Data> {
  data?: Data | null;
  errors?: [{ message: string; extensions: { code: ErrorCode } }];
}

/** A function that runs documents on the server at `url` as the caller whose API key `key` is. It throws ApiError. */
export function client(url: string, key: string) {
  return async <Data, Variables>(query: TypedDocumentString<Data, Variables>, variables: Variables): Promise<Data> => {
    const response = await fetch(`${url}/graphql`, {
      method: "POST",
      headers: {
        "Accept": "application/graphql-response+json",
        "Authorization": `Bearer ${key}`,
        "Content-Type": "application/json",
      },
      body: JSON.stringify({ query, variables }),
    });
    const { data, errors } = (await response.json()) as Answer<Data>;
    if (errors) throw new ApiError(errors[0].extensions.code, errors[0].message);
    if (!data) throw new Error(`no GraphQL answer: HTTP ${response.status}`);
    return data;
  };
}
