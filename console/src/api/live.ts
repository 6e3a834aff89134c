import { useEffect, useRef } from "react";
import { useSubscription } from "urql";

import { SITE_EVENTS } from "./documents";
import { useSession } from "./session";

/** Calls `refresh` on each event of the sites that the tenant sees, or of the site `siteId` alone if it is given. */
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
    // Events that occurred while the connection was lost are not delivered later, so each reconnection refreshes too.
    const onReconnected = () => latest.current();
    reconnections.addEventListener("reconnected", onReconnected);
    return () => reconnections.removeEventListener("reconnected", onReconnected);
  }, [reconnections]);
}
