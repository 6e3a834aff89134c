import { createClient as createSocket } from "graphql-ws";
import { createContext, type ReactNode, useCallback, useContext, useEffect, useMemo, useState } from "react";
import { cacheExchange, Client, fetchExchange, mapExchange, Provider, subscriptionExchange } from "urql";

import type { ViewerQuery } from "../generated/graphql";
import { VIEWER } from "./documents";
import { type Failure, failureOf } from "./failure";
import type { Login } from "./login";

type Viewer = ViewerQuery["viewer"];

interface Session {
  viewer: Viewer;
  /** The tenant whose view the pages show: the viewer's own, or another one that platform staff have chosen. */
  tenantId: string;
  /** Dispatches "reconnected" after an interruption of live updates. */
  reconnections: EventTarget;
  setTenantId: (tenantId: string) => void;
  may: (action: string) => boolean;
  signOut: () => void;
}

const SessionContext = createContext<Session | null>(null);

/** Returns the signed-in session. Throws outside of SessionProvider's children. */
export function useSession(): Session {
  const session = useContext(SessionContext);
  if (!session) throw new Error("not signed in");
  return session;
}

/** What the sign-in page needs from the session: how to begin one, and why the last one ended. */
export interface Entrance {
  /** Begins a session with an API key or a login. Resolves to the failure, or to null on success. */
  enter: (proof: string | Login) => Promise<Failure | null>;
  /** Why the last session ended, or null if the user signed out or has not signed in yet. */
  ended: string | null;
}

/** The code with which the server closes a WebSocket if the key or token is not, or no longer, valid. */
const FORBIDDEN = 4403;

interface Connection {
  client: Client;
  /** Reopens the WebSocket with the current bearer, because the server ends a stream when its first bearer expires. */
  reconnect: () => void;
}

/**
 * Creates a client that holds the bearer in its closure only: never in a storage, a URL, a cache or the DOM. Calls
 * `onRefused` when the server says that the bearer is not valid.
 */
function connectionWith(bearer: () => string, onRefused: () => void, reconnections: EventTarget): Connection {
  const authorization = () => `Bearer ${bearer()}`;
  let connectedBefore = false;
  let open = false;
  const socket = createSocket({
    url: new URL("/graphql", location.href).href.replace(/^http/, "ws"),
    connectionParams: () => ({ authorization: authorization() }),
    lazyCloseTimeout: 2000,
    shouldRetry: (reason) => (reason as CloseEvent).code !== FORBIDDEN,
    retryAttempts: Infinity,
    on: {
      opened: () => {
        open = true; // a socket that is not open yet has not read the bearer, so it needs no reconnection
      },
      connected: () => {
        if (connectedBefore) reconnections.dispatchEvent(new Event("reconnected"));
        connectedBefore = true;
      },
      closed: (event) => {
        open = false;
        if ((event as CloseEvent).code === FORBIDDEN) onRefused();
      },
    },
  });
  const client: Client = new Client({
    url: "/graphql",
    preferGetMethod: false,
    requestPolicy: "cache-and-network",
    fetchOptions: () => ({
      headers: { authorization: authorization(), accept: "application/graphql-response+json" },
    }),
    exchanges: [
      cacheExchange,
      mapExchange({
        onError: ({ graphQLErrors }) =>
          graphQLErrors.some(({ extensions }) => extensions.code === "UNAUTHENTICATED") && onRefused(),
      }),
      fetchExchange,
      subscriptionExchange({
        forwardSubscription: (request) => ({
          subscribe: (sink) => {
            let unsubscribed = false;
            const complete = () => {
              // The server ends a stream when the key is revoked or the token expires. This query finds out: if it is
              // refused, the session ends.
              if (!unsubscribed) void client.query(VIEWER, {}, { requestPolicy: "network-only" }).toPromise();
              sink.complete();
            };
            const unsubscribe = socket.subscribe(
              { ...request, query: request.query ?? "" },
              { next: (value) => sink.next(value as never), error: (error) => sink.error(error), complete },
            );
            return {
              unsubscribe: () => {
                unsubscribed = true;
                unsubscribe();
              },
            };
          },
        }),
      }),
    ],
  });
  const reconnect = () => {
    if (open) socket.terminate();
  };
  return { client, reconnect };
}

const ENDED = {
  key: "The key is not valid any more: it was revoked. Sign in with another one.",
  login: "Your sign-in is not valid any more: it expired or was ended. Sign in again.",
};

/** The state that SessionProvider keeps for a session. */
interface SessionState extends Connection {
  viewer: Viewer;
  proof: string | Login;
}

/**
 * Renders `signIn` until the server accepts a key or login, then `children`. The session is in memory only, so a reload
 * signs out.
 */
export function SessionProvider(props: {
  children: ReactNode;
  signIn: (enter: Entrance["enter"], ended: Entrance["ended"]) => ReactNode;
}) {
  const [state, setState] = useState<SessionState | null>(null);
  const [ended, setEnded] = useState<string | null>(null);
  const [tenantId, setTenantId] = useState("");
  const [reconnections] = useState(() => new EventTarget());
  const enter = useCallback(async (proof: string | Login) => {
    let accepted = false;
    const bearer = typeof proof === "string" ? () => proof : proof.token;
    const { client, reconnect } = connectionWith(bearer, () => {
      if (!accepted) return;
      setState((current) => (current?.client === client ? null : current));
      setEnded(typeof proof === "string" ? ENDED.key : ENDED.login);
    }, reconnections);
    const { data, error } = await client.query(VIEWER, {}, { requestPolicy: "network-only" }).toPromise();
    if (error || !data) return failureOf(error);
    accepted = true;
    setEnded(null);
    setTenantId(data.viewer.tenantId);
    setState({ client, reconnect, viewer: data.viewer, proof });
    return null;
  }, []);
  useEffect(() => {
    if (state && typeof state.proof !== "string") return state.proof.keep(state.reconnect);
    return undefined;
  }, [state]);
  const session = useMemo<Session | null>(
    () =>
      state && {
        viewer: state.viewer,
        tenantId,
        reconnections,
        setTenantId,
        may: (action) =>
          state.viewer.fleetActions.includes(action) ||
          (tenantId === state.viewer.tenantId && state.viewer.actions.includes(action)),
        signOut: () => setState(null),
      },
    [state, tenantId],
  );
  if (!state || !session) return props.signIn(enter, ended);
  return (
    <Provider value={state.client}>
      <SessionContext value={session}>{props.children}</SessionContext>
    </Provider>
  );
}
