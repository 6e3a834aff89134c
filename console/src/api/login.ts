import type { OidcClient, SigninResponse } from "oidc-client-ts";

/** How people sign in beside API keys, as the server tells it. */
export interface Issuer {
  issuer: string;
  clientId: string;
  audience: string;
}

/** A login at the issuer. Its tokens are in its closure alone: never in a storage, a URL or the DOM. */
export interface Login {
  /** The token to send now. */
  token: () => string;
  /** Who signed in, as the issuer names them; for an administrator who is to let them in. */
  subject: string;
  /** Renews the token before it expires, if the issuer lets us, and calls `renewed`; the answer stops it. */
  keep: (renewed: () => void) => () => void;
}

let asked: Promise<Issuer | null> | undefined;

/** The issuer that the server trusts; null where there is none, or where it cannot be asked: the key's form stays. */
export function issuer(): Promise<Issuer | null> {
  asked ??= fetch("/api/sign-in.json")
    .then(async (answer) => ((await answer.json()) as { oidc: Issuer | null }).oidc)
    .catch(() => null);
  return asked;
}

/** The issuer's host, for people. */
export const hostOf = ({ issuer }: Issuer) => new URL(issuer).host;

/** The library is loaded when it is needed: most visits never do. */
async function client({ issuer, clientId, audience }: Issuer): Promise<OidcClient> {
  const { OidcClient, WebStorageStateStore } = await import("oidc-client-ts");
  return new OidcClient({
    authority: issuer,
    client_id: clientId,
    redirect_uri: `${location.origin}/`,
    scope: "openid",
    // Issuers that pick the audience by request have it so; the others ignore it (RFC 6749, 3.1).
    extraQueryParams: { audience },
    // State, nonce and the proof key of one redirect. They are removed when its answer comes.
    stateStore: new WebStorageStateStore({ store: sessionStorage, prefix: "sign-in." }),
  });
}

/** Goes to the issuer. Rejects if it cannot be asked where its sign-in is. */
export async function leaveFor(issuer: Issuer): Promise<void> {
  const oidc = await client(issuer);
  const { url } = await oidc.createSigninRequest({ state: location.hash });
  location.assign(url);
}

/** The issuer's answer, if this page was loaded with one, out of the address before anybody sees it there. */
function takeAnswer(): string | null {
  const given = new URLSearchParams(location.search);
  if (!given.has("state") || !(given.has("code") || given.has("error"))) return null;
  const answer = location.href;
  history.replaceState(null, "", `/${location.hash}`);
  return answer;
}

let answer = takeAnswer();

/** The login that this page was loaded to complete, if it was. Rejects if the issuer, or its answer, is not right. */
export async function returned(): Promise<Login | null> {
  const url = answer;
  answer = null;
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
      let left = false;
      const plan = () => {
        const { refresh_token, expires_in } = current;
        if (!refresh_token || expires_in === undefined || left) return;
        // A minute before the end, or, of short-lived tokens, at half time.
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
          return; // the session ends with the token, and says so then
        }
        if (left) return;
        renewed();
        plan();
      };
      plan();
      return () => {
        left = true;
        window.clearTimeout(timer);
      };
    },
  };
}
