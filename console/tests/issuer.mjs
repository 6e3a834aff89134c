// Runs an OIDC issuer for browser tests. It signs everybody in as "johndoe" without asking, and prints its URL once it
// serves. Arguments: the audience of the access tokens, their lifetime in seconds, and "once" for no refresh tokens.
import { Events, OAuth2Server } from "oauth2-mock-server";

const [audience, seconds, once] = process.argv.slice(2);
const server = new OAuth2Server();
await server.issuer.keys.generate("RS256");
await server.start(0, "127.0.0.1");
server.issuer.url = `http://127.0.0.1:${server.address().port}`; // the tests' browser resolves no host names
server.service.on(Events.BeforeTokenSigning, ({ payload }) => {
  if (payload.aud !== undefined) return; // an id token, which already has the client as its audience
  payload.aud = audience;
  payload.exp = Math.floor(Date.now() / 1000) + Number(seconds);
});
server.service.on(Events.BeforeResponse, ({ body }) => {
  body.expires_in = Number(seconds);
  if (once === "once") delete body.refresh_token;
});
console.log(server.issuer.url);
