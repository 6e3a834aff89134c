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
  /** As which tenant the pages look: the viewer's own, or, for platform staff, another. */
  tenantId: string;
  /** Tells ("reconnected") that live updates were lost for a while. */
  reconnections: EventTarget;
  setTenantId: (tenantId: string) => void;
  may: (action: string) => boolean;
  signOut: () => void;
}

const SessionContext = createContext<Session | null>(null);

/** The signed-in session. Callers stand below SessionProvider's children. */
export function useSession(): Session {
  const session = useContext(SessionContext);
  if (!session) throw new Error("not signed in");
  return session;
}

/** What the sign-in page works with. */
export interface Entrance {
  /** Begins a session by an API key or a login; answers why not. */
  enter: (proof: string | Login) => Promise<Failure | null>;
  /** Why the last session ended, if it was not by signing out. */
  ended: string | null;
}

/** The server's close code for a key or token that is not valid, or not any more. */
const FORBIDDEN = 4403;

interface Connection {
  client: Client;
  /** Opens the WebSocket anew, with the bearer of now; the server ends streams when the one they began with does. */
  reconnect: () => void;
}

/**
 * A client that holds the bearer in its closure: never in storage, a URL, a cache or the DOM. `onRefused` hears when
 * it is not valid any more.
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
        open = true; // and only now is the bearer asked for
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
            let left = false;
            const complete = () => {
              // The server ends a stream when the key is revoked or the token expires: ask, and hear it.
              if (!left) void client.query(VIEWER, {}, { requestPolicy: "network-only" }).toPromise();
              sink.complete();
            };
            const leave = socket.subscribe(
              { ...request, query: request.query ?? "" },
              { next: (value) => sink.next(value as never), error: (error) => sink.error(error), complete },
            );
            return {
              unsubscribe: () => {
                left = true;
                leave();
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

/** What is kept of a session. */
interface Begun extends Connection {
  viewer: Viewer;
  proof: string | Login;
}

/** Renders `signIn` until a key or login was accepted, then `children`. A reload signs out: it is kept in memory alone. */
export function SessionProvider(props: {
  children: ReactNode;
  signIn: (enter: Entrance["enter"], ended: Entrance["ended"]) => ReactNode;
}) {
  const [state, setState] = useState<Begun | null>(null);
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
