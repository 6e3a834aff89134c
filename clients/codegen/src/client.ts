import type { ErrorCode } from "./generated/enums.js";
import type { TypedDocumentString } from "./generated/graphql.js";

/** An error of the API with its code. The message quotes no value of the request. */
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

/** Returns a function that runs documents on the server at `url` with the API key `key`. It throws ApiError. */
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
