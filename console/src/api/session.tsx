import { createClient as createSocket } from "graphql-ws";
import { createContext, type ReactNode, useCallback, useContext, useMemo, useState } from "react";
import { cacheExchange, Client, fetchExchange, Provider, subscriptionExchange } from "urql";

import type { ViewerQuery } from "../generated/graphql";
import { VIEWER } from "./documents";
import { type Failure, failureOf } from "./failure";

type Viewer = ViewerQuery["viewer"];

interface Session {
  viewer: Viewer;
  /** As which tenant the pages look: the viewer's own, or, for platform staff, another. */
  tenantId: string;
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

/** A client that holds the API key in its closure: never in storage, a URL, a cache or the DOM. */
function clientWith(key: string): Client {
  const authorization = `Bearer ${key}`;
  const socket = createSocket({
    url: new URL("/graphql", location.href).href.replace(/^http/, "ws"),
    connectionParams: { authorization },
    lazyCloseTimeout: 2000,
    shouldRetry: () => true,
    retryAttempts: Infinity,
  });
  return new Client({
    url: "/graphql",
    preferGetMethod: false,
    requestPolicy: "cache-and-network",
    fetchOptions: { headers: { authorization, accept: "application/graphql-response+json" } },
    exchanges: [
      cacheExchange,
      fetchExchange,
      subscriptionExchange({
        forwardSubscription: (request) => ({
          subscribe: (sink) => ({
            unsubscribe: socket.subscribe({ ...request, query: request.query ?? "" }, sink as never),
          }),
        }),
      }),
    ],
  });
}

/** Renders `signIn` until a key was accepted, then `children`. A reload signs out: the key is kept in memory alone. */
export function SessionProvider(props: {
  children: ReactNode;
  signIn: (enter: (key: string) => Promise<Failure | null>) => ReactNode;
}) {
  const [state, setState] = useState<{ client: Client; viewer: Viewer } | null>(null);
  const [tenantId, setTenantId] = useState("");
  const enter = useCallback(async (key: string) => {
    const client = clientWith(key);
    const { data, error } = await client.query(VIEWER, {}, { requestPolicy: "network-only" }).toPromise();
    if (error || !data) return failureOf(error);
    setTenantId(data.viewer.tenantId);
    setState({ client, viewer: data.viewer });
    return null;
  }, []);
  const session = useMemo<Session | null>(
    () =>
      state && {
        viewer: state.viewer,
        tenantId,
        setTenantId,
        may: (action) =>
          state.viewer.fleetActions.includes(action) ||
          (tenantId === state.viewer.tenantId && state.viewer.actions.includes(action)),
        signOut: () => setState(null),
      },
    [state, tenantId],
  );
  if (!state || !session) return props.signIn(enter);
  return (
    <Provider value={state.client}>
      <SessionContext value={session}>{props.children}</SessionContext>
    </Provider>
  );
}
