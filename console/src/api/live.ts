import { useEffect, useRef } from "react";
import { useSubscription } from "urql";

import { SITE_EVENTS } from "./documents";
import { useSession } from "./session";

/** Calls `refresh` whenever something happens to the sites that the tenant sees, or to the one given. */
export function useLive(refresh: () => void, siteId?: string) {
  const { tenantId, reconnections } = useSession();
  const [{ data }] = useSubscription({ query: SITE_EVENTS, variables: { tenantId, siteId: siteId ?? null } });
  const position = data?.siteEvents.position;
  const latest = useRef(refresh);
  useEffect(() => {
    latest.current = refresh;
  });
  useEffect(() => {
    if (position !== undefined) latest.current();
  }, [position]);
  useEffect(() => {
    // What happened while the connection was lost was told to nobody.
    const again = () => latest.current();
    reconnections.addEventListener("reconnected", again);
    return () => reconnections.removeEventListener("reconnected", again);
  }, [reconnections]);
}
