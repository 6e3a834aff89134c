import type { CombinedError } from "urql";

/** A failed request as the pages show it. `fields` has a message for each invalid field, by its path. */
export interface Failure {
  /** A value of the API's `ErrorCode`, or NETWORK if no answer arrived. */
  code: string;
  message: string;
  fields: Record<string, string>;
  requestId?: string | undefined;
}

const HINTS: Record<string, string> = {
  UNAUTHENTICATED: "The key is unknown, malformed or revoked. Sign in with another one.",
  PERMISSION_DENIED: "Your role does not allow this. An administrator of the tenant can change your role.",
  NOT_FOUND: "It does not exist, or your tenant does not see it.",
  CONFLICT: "Somebody else changed it meanwhile. Reload, look again, and repeat.",
  RESOURCE_EXHAUSTED: "Too much at once. Wait a moment, then try again.",
  UNAVAILABLE: "The server cannot reach a part that it needs. Nothing was changed; try again shortly.",
  INTERNAL: "Something went wrong on the server. Its log has the request id.",
  NETWORK: "The server does not answer. Check the connection, then try again.",
};

/** Converts urql's error. Without a GraphQL error in it, the code is NETWORK. */
export function failureOf(error: CombinedError | undefined): Failure {
  const first = error?.graphQLErrors[0];
  if (!first) return { code: "NETWORK", message: HINTS.NETWORK ?? "", fields: {} };
  const { code = "INTERNAL", fields = [], requestId } = first.extensions as {
    code?: string;
    fields?: { path: string; message: string }[];
    requestId?: string;
  };
  return {
    code,
    message: HINTS[code] ?? first.message,
    fields: Object.fromEntries(fields.map(({ path, message }) => [path, message])),
    requestId,
  };
}
