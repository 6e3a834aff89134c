import type { OidcClient, SigninResponse } from "oidc-client-ts";

/** The OpenID Connect issuer at which people can sign in instead of using an API key, as the server describes it. */
export interface Issuer {
  issuer: string;
  clientId: string;
  audience: string;
}

/** A login at the issuer. Only its closure holds the tokens: they are never in a storage, a URL or the DOM. */
export interface Login {
  /** Returns the current access token. */
  token: () => string;
  /** The issuer's `sub` of the person. An administrator needs it to add the login. */
  subject: string;
  /**
   * Renews the access token before it expires, if the issuer gave a refresh token, and calls `renewed` each time.
   * Returns a function that stops the renewals.
   */
  keep: (renewed: () => void) => () => void;
}

let issuerRequest: Promise<Issuer | null> | undefined;

/**
 * Returns the issuer that the server trusts, and asks the server once per page load. Returns null if there is none, or
 * if the request fails. The page then offers the form for API keys only.
 */
export function issuer(): Promise<Issuer | null> {
  issuerRequest ??= fetch("/api/sign-in.json")
    .then(async (answer) => ((await answer.json()) as { oidc: Issuer | null }).oidc)
    .catch(() => null);
  return issuerRequest;
}

/** Returns the issuer's host, to show to people. */
export const hostOf = ({ issuer }: Issuer) => new URL(issuer).host;

/** Creates the OIDC client. Loads the library only now, because most visits never need it. */
async function client({ issuer, clientId, audience }: Issuer): Promise<OidcClient> {
  const { OidcClient, WebStorageStateStore } = await import("oidc-client-ts");
  return new OidcClient({
    authority: issuer,
    client_id: clientId,
    redirect_uri: `${location.origin}/`,
    scope: "openid",
    // Some issuers take the audience from this parameter. The others ignore it (RFC 6749, section 3.1).
    extraQueryParams: { audience },
    // Holds the state, nonce and proof key of one redirect. The library removes them when the issuer's answer arrives.
    stateStore: new WebStorageStateStore({ store: sessionStorage, prefix: "sign-in." }),
  });
}

/** Sends the browser to the issuer's sign-in page. Rejects if the issuer's discovery document cannot be read. */
export async function leaveFor(issuer: Issuer): Promise<void> {
  const oidc = await client(issuer);
  const { url } = await oidc.createSigninRequest({ state: location.hash });
  location.assign(url);
}

/**
 * Returns the address with the issuer's answer, or null if the page was loaded without one. Removes the answer from the
 * address bar before anybody sees it there.
 */
function takeAnswer(): string | null {
  const parameters = new URLSearchParams(location.search);
  if (!parameters.has("state") || !(parameters.has("code") || parameters.has("error"))) return null;
  const answer = location.href;
  history.replaceState(null, "", `/${location.hash}`);
  return answer;
}

let pendingAnswer = takeAnswer();

/**
 * Completes the login if this page was loaded with the issuer's answer, and returns it; returns null otherwise. Rejects
 * if the issuer or its answer is not valid.
 */
export async function returned(): Promise<Login | null> {
  const url = pendingAnswer;
  pendingAnswer = null;
  const trusted = url && (await issuer());
  if (!url || !trusted) return null;
  const oidc = await client(trusted);
  const response = await oidc.processSigninResponse(url);
  if (typeof response.userState === "string") location.hash = response.userState;
  return loginOf(oidc, response);
}

function loginOf(oidc: OidcClient, first: SigninResponse): Login {
  let current = first;
  return {
    token: () => current.access_token,
    subject: first.profile.sub,
    keep: (renewed) => {
      let timer: number | undefined;
      let stopped = false;
      const schedule = () => {
        const { refresh_token, expires_in } = current;
        if (!refresh_token || expires_in === undefined || stopped) return;
        // Renew a minute before the token expires, or at half of its lifetime if that is later (short-lived tokens).
        timer = window.setTimeout(() => void renew(refresh_token), 1000 * Math.max(expires_in - 60, expires_in / 2));
      };
      const renew = async (refresh_token: string) => {
        const { id_token, session_state, scope, profile } = current;
        const state = { refresh_token, session_state, profile, ...(id_token && { id_token }), ...(scope && { scope }) };
        try {
          const next = await oidc.useRefreshToken({ state });
          next.refresh_token ??= refresh_token;
          current = next;
        } catch {
          return; // the session ends when the token expires, and the page says so then
        }
        if (stopped) return;
        renewed();
        schedule();
      };
      schedule();
      return () => {
        stopped = true;
        window.clearTimeout(timer);
      };
    },
  };
}
