"""Sign-in by OIDC: which JWTs are logins, which keys prove them, and what happens while the issuer is out of reach."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from models.access import identities
from models.access.iam import Role
from models.sensitive import BearerToken
from services import bootstrap
from services.identity import oidc
from settings import Settings, SettingsError
from tests.api.test_live import close_code, mint, received, subscribe, websocket
from tests.support.agent_world import join
from tests.support.doors import REQUEST_ID, Door, both_doors
from tests.support.identity_provider import AUDIENCE, Provider, enlist, open_provider
from tests.support.outside import bcd
from tests.support.world import World, make_world

pytestmark = pytest.mark.anyio

DISCOVERY = "/.well-known/openid-configuration"


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    """Yields an issuer with one key."""
    async with open_provider() as opened:
        yield opened


@pytest.fixture
async def world(database_url: str, tmp_path: Path, provider: Provider) -> AsyncIterator[World]:
    """Yields the demo world, whose server trusts the issuer. ada is an administrator of acme."""
    trust = {"oidc_issuer": provider.url, "oidc_audience": AUDIENCE}
    async with make_world(database_url, tmp_path, **trust) as demo:
        await enlist(demo, provider.url)
        yield demo


def issuer_of(world: World) -> oidc.Issuer:
    """Returns the server's object for the issuer."""
    [issuer] = world.services.callers.issuers
    assert isinstance(issuer, oidc.Issuer)
    return issuer


def segment(value: Any) -> str:
    """Returns a part of a JWT, encoded by hand."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


async def code(world: World, token: str) -> str:
    """Returns the code that the HTTP door answers to ``token``, or ``OK``."""
    answer = await world.post(token, "sites/list", {})
    return "OK" if answer.status_code == 200 else str(answer.json()["code"])


# --- logins ------------------------------------------------------------------------------------------------------


@both_doors
async def test_a_login_is_the_identity_that_iam_binds_to_it(world: World, provider: Provider, door: Door) -> None:
    """Both doors accept the login. The server finds the keys by discovery, and fetches them once."""
    for _ in range(3):
        sites = (await door.call(world, provider.token(), "sites.list")).ok["items"]
        assert {site["name"] for site in sites} >= {"Acme Berlin lab"}
    viewer = await world.graphql(provider.token(), "{ viewer { name tenantId } }")
    assert viewer == {"data": {"viewer": {"name": "ada", "tenantId": "acme"}}}
    assert provider.asked == [DISCOVERY, "/keys"]
    assert (await door.call(world, "acme-admin", "sites.list")).code == "OK"


async def test_every_asymmetric_kind_of_key_proves(world: World, provider: Provider) -> None:
    """RSA with both paddings, EC with the three curves, and Ed25519 under both of its names are accepted."""
    kinds: list[tuple[Any, list[str]]] = [
        (RSAKey.generate_key(2048, {"kid": "rsa"}), ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]),
        (ECKey.generate_key("P-256", {"kid": "p256"}), ["ES256"]),
        (ECKey.generate_key("P-384", {"kid": "p384"}), ["ES384"]),
        (ECKey.generate_key("P-521", {"kid": "p521"}), ["ES512"]),
        (OKPKey.generate_key("Ed25519", {"kid": "ed"}), ["Ed25519", "EdDSA"]),
    ]
    provider.publish(*(key for key, _ in kinds))
    for key, algorithms in kinds:
        for name in algorithms:
            assert await code(world, provider.token(key=key, header={"alg": name, "kid": key.kid})) == "OK", name
    assert {name for _, names in kinds for name in names} == oidc.ALGORITHMS


async def test_what_is_no_login_is_told_from_nothing(world: World, provider: Provider) -> None:
    """Every fault gets the same bytes as a request without a credential. None of them causes another fetch of keys."""
    assert await code(world, provider.token()) == "OK"
    now = int(time.time())
    public = json.dumps(provider.published[0]).encode()
    pem = ECKey.import_key(provider.published[0]).as_pem(private=False)
    good = provider.token()
    head, body, signature = good.split(".")
    other = ECKey.generate_key("P-256", {"kid": "k1"})
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    flipped = segment(claims | {"sub": "root-admin"})
    faults = {
        "wrong audience": provider.token(aud="another-api"),
        "no audience": provider.token(aud=None),
        "other audiences": provider.token(aud=["a", "b"]),
        "audience in part": provider.token(aud=AUDIENCE[:-1]),
        "wrong issuer": provider.token(iss="https://issuer.example"),
        "issuer with a slash": provider.token(iss=provider.url + "/"),
        "no issuer": provider.token(iss=None),
        "expired": provider.token(exp=now - 11),
        "no expiry": provider.token(exp=None),
        "expiry as text": provider.token(exp=str(now + 300)),
        "not yet": provider.token(nbf=now + 30),
        "issued in the future": provider.token(iat=now + 30),
        "no subject": provider.token(sub=""),
        "subject as a number": provider.token(sub=4711),  # type: ignore[arg-type]
        "long subject": provider.token(sub="a" * 256),
        "subject that no database can hold": provider.token(sub="ada\0"),
        "unknown subject": provider.token(sub="bob"),
        "signed by another key": provider.token(key=other),
        "alg none": f"{segment({'alg': 'none', 'kid': 'k1'})}.{body}.",
        "alg none, signed": f"{segment({'alg': 'none', 'kid': 'k1'})}.{body}.{signature}",
        "alg None": f"{segment({'alg': None, 'kid': 'k1'})}.{body}.{signature}",
        "HMAC by the public JWK": provider.token(key=OctKey.import_key(public), header={"alg": "HS256"}),
        "HMAC by the public PEM": provider.token(key=OctKey.import_key(base64.b64encode(pem)), header={"alg": "HS256"}),
        "another kind of algorithm": f"{segment({'alg': 'RS256', 'kid': 'k1'})}.{body}.{signature}",
        "other claims": f"{head}.{flipped}.{signature}",
        "no signature": f"{head}.{body}.",
        "an agent's type": provider.token(header={"typ": "bc-agent+jwt"}),
        "a logout token's type": provider.token(header={"typ": "logout+jwt"}),
        "a type that is no text": f"{segment({'alg': 'ES256', 'kid': 'k1', 'typ': 5})}.{body}.{signature}",
        "key name that is no text": f"{segment({'alg': 'ES256', 'kid': ['k1']})}.{body}.{signature}",
        "header that is no object": f"{segment('alg')}.{body}.{signature}",
        "header of brackets": f"{base64.urlsafe_b64encode(b'[' * 2997).decode()}.{body}.{signature}",
        "claims that are no object": f"{head}.{segment([])}.{signature}",
        "claims of brackets": f"{head}.{base64.urlsafe_b64encode(b'[' * 3000).decode()}.{signature}",
        "too large": provider.token(padding="x" * oidc.MAX_CHARACTERS),
        "no base64": "!.?.*",
        "dots": "..",
    }
    headers = {"x-request-id": REQUEST_ID}
    without_credential = await world.client.post("/api/compute/sites/list", json={}, headers=headers)
    for fault, token in faults.items():
        answer = await world.client.post(
            "/api/compute/sites/list", json={}, headers=headers | {"authorization": f"Bearer {token}"}
        )
        assert (answer.status_code, answer.content) == (401, without_credential.content), fault
        assert answer.headers["www-authenticate"] == "Bearer"
    assert provider.asked == [DISCOVERY, "/keys"]
    assert await code(world, good) == "OK"


async def test_what_issuers_differ_in_is_taken(world: World, provider: Provider) -> None:
    """Issuers write types and audiences differently, have slightly different clocks, and add header members."""
    now = int(time.time())
    for token in (
        provider.token(header={"typ": "JWT"}),
        provider.token(header={"typ": None}),
        provider.token(header={"typ": "application/at+jwt"}),
        provider.token(aud=[AUDIENCE, "account"]),
        provider.token(exp=now - 3),
        provider.token(nbf=now + 3, iat=now + 3),
        provider.token(header={"x5t": "abc", "jku": "https://evil.example/keys"}),
    ):
        assert await code(world, token) == "OK"
    assert provider.asked == [DISCOVERY, "/keys"]


async def test_no_door_takes_what_is_for_the_other(world: World, provider: Provider) -> None:
    """An agent's JWT is not a login, and a login is not an agent, even if its subject and key have an agent's id."""
    agent = await join(world)
    assert await code(world, agent.jwt()) == "UNAUTHENTICATED"
    key = OKPKey.generate_key("Ed25519", {"kid": agent.id})
    provider.publish(key)
    for typ in ("at+jwt", "bc-agent+jwt"):
        token = provider.token(sub=agent.id, header={"alg": "Ed25519", "typ": typ}, aud=[AUDIENCE, "better-compute"])
        answer = await world.post(token, "siteAgents/self", {})
        assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED")
    await agent.ok(world, "compute/siteAgents/self")


async def test_without_an_issuer_no_jwt_is_a_login(database_url: str, tmp_path: Path, provider: Provider) -> None:
    async with make_world(database_url, tmp_path) as world:
        await enlist(world, provider.url)
        assert await code(world, provider.token()) == "UNAUTHENTICATED"
        assert provider.asked == []


async def test_no_token_reaches_the_log(world: World, provider: Provider, caplog: Any, capfd: Any) -> None:
    """Neither valid nor invalid tokens are logged, whether the issuer is in reach or not."""
    provider.down = True
    tokens = [provider.token(), provider.token(aud="x"), provider.token(header={"kid": "k2"})]
    for token in tokens:
        await code(world, token)
    provider.down = False
    issuer_of(world)._next_fetch = 0
    for token in tokens:
        await code(world, token)
    logged = "".join((*capfd.readouterr(), caplog.text))
    assert "oidc.keys_unavailable" in logged
    for token in tokens:
        assert token not in logged
        assert token.rpartition(".")[2] not in logged


# --- the issuer's keys -------------------------------------------------------------------------------------------


async def test_a_new_key_is_found_and_a_withdrawn_one_forgotten(world: World, provider: Provider) -> None:
    """An unknown key name makes the server fetch the keys, but not again within some seconds."""
    old = provider.token()
    assert await code(world, old) == "OK"
    provider.publish(ECKey.generate_key("P-256", {"kid": "k2"}))
    new = provider.token()
    assert await code(world, new) == "UNAUTHENTICATED", "asked a moment ago"
    issuer_of(world)._next_fetch = 0
    answers = await asyncio.gather(*(code(world, token) for token in [new] * 8 + [provider.token(header={"kid": "x"})]))
    assert answers == ["OK"] * 8 + ["UNAUTHENTICATED"]
    for number in range(20):
        assert await code(world, provider.token(header={"kid": f"x{number}"})) == "UNAUTHENTICATED"
    assert await code(world, old) == "UNAUTHENTICATED"
    assert provider.asked == [DISCOVERY, "/keys"] * 2


async def test_a_withdrawn_key_is_forgotten_without_being_asked_for(
    database_url: str, tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server fetches the keys again every few minutes, so a withdrawn key stops without any request."""
    monkeypatch.setattr(oidc.Issuer, "refresh_seconds", 0.05)
    async with make_world(database_url, tmp_path, oidc_issuer=provider.url, oidc_audience=AUDIENCE) as world:
        await enlist(world, provider.url)
        old = provider.token()
        assert await code(world, old) == "OK"
        provider.publish(ECKey.generate_key("P-256", {"kid": "k2"}))
        began = time.monotonic()
        while await code(world, old) == "OK":
            assert time.monotonic() - began < 5
        assert await code(world, provider.token()) == "OK"


async def test_an_issuer_that_is_away_shuts_nobody_out(world: World, provider: Provider) -> None:
    """Without keys a login cannot be checked and gets UNAVAILABLE. Logins by known keys, and API keys, go on."""
    provider.down = True
    answer = await world.post(provider.token(), "sites/list", {})
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "UNAVAILABLE", "10")
    assert await code(world, provider.token(aud="no matter")) == "UNAVAILABLE"
    assert await code(world, provider.token(iss="https://issuer.example")) == "UNAUTHENTICATED"
    assert await code(world, "acme-admin") == "OK"
    assert provider.asked == [DISCOVERY]
    async with websocket(world, None) as socket:
        payload = {"authorization": f"Bearer {provider.token()}"}
        await socket.send(json.dumps({"type": "connection_init", "payload": payload}))
        assert await close_code(socket) == 1013
    none = f"{segment({'alg': 'none', 'kid': 'k1'})}.{provider.token().split('.')[1]}."
    assert await code(world, none) == "UNAUTHENTICATED"
    provider.down = False
    issuer_of(world)._next_fetch = 0
    assert await code(world, provider.token()) == "OK"
    provider.down = True
    await issuer_of(world).refresh()
    assert await code(world, provider.token()) == "OK"
    assert await code(world, provider.token(header={"kid": "k2"})) == "UNAVAILABLE", "it may be a new key"


@pytest.mark.parametrize(
    "answer",
    [
        {"issuer": "https://issuer.example"},
        {"jwks_uri": "http://issuer.example/keys"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": "http://me@HOST/keys"},
        {"jwks_uri": "https://[/"},
        {"padding": "x" * oidc.MAX_DOCUMENT_BYTES},
    ],
)
async def test_an_odd_discovery_is_not_followed(world: World, provider: Provider, answer: dict[str, Any]) -> None:
    """Another issuer's document, an insecure URL of the keys, and a too large document are refused."""
    provider.more = {name: str(value).replace("HOST", provider.url[7:]) for name, value in answer.items()}
    assert await code(world, provider.token()) == "UNAVAILABLE"
    assert provider.asked == [DISCOVERY]


async def test_only_keys_for_signatures_count(provider: Provider) -> None:
    """Symmetric, short, encrypting, unknown and broken keys are ignored. A set without other keys is an outage."""
    issuer = oidc.Issuer(provider.url, audience=AUDIENCE, jwks_url=f"{provider.url}/keys")
    secret = OctKey.generate_key(256, {"kid": "oct"})
    good = provider.published[0]
    provider.published = [
        dict(secret.as_dict(private=True)),
        dict(RSAKey.generate_key(2048, {"kid": "enc", "use": "enc"}).as_dict(private=False)),
        {"kty": "RSA", "kid": "short", "n": "u" * 171, "e": "AQAB"},
        {"kty": "AKP", "kid": "new", "pub": "AA"},
        {"kty": "EC", "kid": "broken", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": ["EC"]},
        "no object",  # type: ignore[list-item]
    ]
    with pytest.raises(Exception, match="out of reach"):
        await issuer.verify(BearerToken(provider.token()))
    provider.published.append(good)
    await issuer.refresh()
    assert provider.asked == ["/keys"] * 2
    assert list(issuer._keys) == ["k1"]
    login = await issuer.verify(BearerToken(provider.token()))
    assert login is not None
    assert login.subject == f"{provider.url}|ada"
    assert 300 < login.until - time.monotonic() <= 300 + oidc.LEEWAY_SECONDS
    endless = await issuer.verify(BearerToken(provider.token(exp=10**18)))
    assert endless is not None
    assert endless.until - time.monotonic() <= oidc.LONGEST_SECONDS
    await issuer.close()


async def test_what_must_be_understood_is_refused(world: World, provider: Provider) -> None:
    """A JWT with a valid signature is refused if it has an unknown critical header member (RFC 7515, 4.1.11)."""
    key = OKPKey.generate_key("Ed25519", {"kid": "ed"})
    provider.publish(key)
    body = provider.token(header={"alg": "Ed25519"}).split(".")[1]
    for extension, answer in (({"nonce": "a"}, "OK"), ({"crit": ["exp"], "exp": 1}, "UNAUTHENTICATED")):
        text = f"{segment({'alg': 'Ed25519', 'kid': 'ed'} | extension)}.{body}"
        signature = base64.urlsafe_b64encode(key.private_key.sign(text.encode())).rstrip(b"=").decode()  # type: ignore[union-attr]
        assert await code(world, f"{text}.{signature}") == answer


async def test_a_key_is_used_for_its_own_algorithm_alone(world: World, provider: Provider) -> None:
    """A key that is published for one algorithm does not prove a signature by another one."""
    key = RSAKey.generate_key(2048, {"kid": "rsa", "alg": "PS256", "use": "sig"})
    provider.publish(key)
    bare = RSAKey.import_key({n: v for n, v in key.as_dict(private=True).items() if n not in {"alg", "use"}})
    assert await code(world, provider.token(key=bare, header={"alg": "PS256"})) == "OK"
    assert await code(world, provider.token(key=bare, header={"alg": "RS256"})) == "UNAUTHENTICATED"


# --- revocation --------------------------------------------------------------------------------------------------


async def test_a_removed_login_stops_at_once(world: World, provider: Provider) -> None:
    """The notification drops the kept login, as it drops a revoked key. The login's stream ends too."""
    token = provider.token()
    async with websocket(world, token) as socket:
        await subscribe(socket)
        assert await code(world, token) == "OK"
        async with world.owner.transaction() as tx:
            assert await identities.take_subject(tx, f"{provider.url}|ada")
            assert not await identities.take_subject(tx, f"{provider.url}|ada")
        began = time.monotonic()
        while await code(world, token) == "OK":
            assert time.monotonic() - began < 2
        assert (await received(socket)) == {"type": "complete", "id": "1"}
        await subscribe(socket, "2")
        assert await close_code(socket) == 4403
    assert await code(world, token) == "UNAUTHENTICATED"


async def test_a_login_without_bindings_sees_nothing(world: World, provider: Provider) -> None:
    """The issuer decides who signs in. The bindings decide what the login may do."""
    assert await code(world, provider.token()) == "OK"
    await world.rows("DELETE FROM role_bindings USING identities i WHERE i.id = identity_id AND i.name = 'ada'")
    began = time.monotonic()
    while await code(world, provider.token()) == "OK":
        assert time.monotonic() - began < 2
    assert (await world.graphql(provider.token(), "{ viewer { name actions } }"))["data"]["viewer"]["actions"] == []


async def test_a_stream_ends_when_its_login_does(
    world: World, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscription and the watch deliver events until the login expires, and then end without any event."""
    monkeypatch.setattr(oidc, "LEEWAY_SECONDS", 0)
    expires = int(time.time()) + 3
    token = provider.token(exp=expires)
    async with websocket(world, token) as socket:
        await subscribe(socket)
        async with world.client.stream("GET", "/api/compute/watch", headers=world.headers(token)) as watch:
            await mint(world, "acme-admin", "acme", await world.site_id("Acme Berlin"), "k")
            assert (await received(socket))["payload"]["data"]["siteEvents"]["type"] == "security.site-token.created"
            body = (await asyncio.wait_for(watch.aread(), 6)).decode()
        assert "security.site-token.created" in body
        assert (await received(socket)) == {"type": "complete", "id": "1"}
        assert expires <= time.time() < expires + 1
        await subscribe(socket, "2", "{ viewer { name } }")
        assert await close_code(socket) == 4403


async def test_a_subject_is_one_identity(world: World, provider: Provider) -> None:
    """A subject has one identity, and an identity one subject. The same login again is no error, and may add a role."""
    await enlist(world, provider.url, "ada", Role.VIEWER)
    with pytest.raises(bootstrap.SubjectTakenError):
        await enlist(world, provider.url, "bob", name="ada")
    with pytest.raises(bootstrap.SubjectTakenError):
        await enlist(world, provider.url, "ada", name="another")
    assert await world.count("identities", "subject IS NOT NULL") == 1
    assert await world.count("identities", "name = 'another'") == 0


# --- settings ----------------------------------------------------------------------------------------------------

SECURE = "https://login.example.com/realms/acme"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"issuer": SECURE}, "BC_OIDC_AUDIENCE: .*is required"),
        ({"audience": "a"}, "BC_OIDC_AUDIENCE: .*needs BC_OIDC_ISSUER"),
        ({"client_id": "a"}, "BC_OIDC_CLIENT_ID: .*needs BC_OIDC_ISSUER"),
        ({"issuer": "http://login.example.com", "audience": "a"}, "BC_OIDC_ISSUER: .*https"),
        ({"issuer": "login.example.com", "audience": "a"}, "BC_OIDC_ISSUER: .*https"),
        ({"issuer": "https://me@login.example.com", "audience": "a"}, "BC_OIDC_ISSUER: .*https"),
        ({"issuer": SECURE, "audience": "a", "jwks_url": "http://login.example.com/keys"}, "BC_OIDC_JWKS_URL: .*https"),
    ],
)
def test_half_an_issuer_stops_the_start(given: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"BC_OIDC_{name.upper()}", value)
    with pytest.raises(SettingsError, match=named) as error:
        Settings.read()
    assert str(error.value).count("BC_OIDC_") - str(error.value).count("BC_OIDC_ISSUER") <= 1


async def test_a_slow_issuer_is_waited_for_a_bounded_time(
    database_url: str, tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The issuer's socket accepts the request and never answers. All callers wait for the same bounded fetch."""
    monkeypatch.setattr(oidc, "FETCH_SECONDS", 0.3)

    connections = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, make_world(database_url, tmp_path, oidc_issuer=provider.url, oidc_audience="a") as world:
        began = time.monotonic()
        codes = await asyncio.gather(*(code(world, provider.token()) for _ in range(5)))
        assert codes == ["UNAVAILABLE"] * 5
        assert time.monotonic() - began < 2
        first = connections
        assert await code(world, provider.token()) == "UNAVAILABLE"
        assert connections == first >= 1, "not asked anew for a while"


async def test_bcd_iam_binds_and_removes_logins(world: World, provider: Provider, database_url: str) -> None:
    """A running server accepts an added login and refuses a removed one at once. Each mistake prints one line."""
    owner = {"BC_DATABASE_URL": database_url, "BC_OIDC_ISSUER": provider.url, "BC_OIDC_AUDIENCE": AUDIENCE}

    async def iam(*arguments: str, **environment: str) -> tuple[int, str]:
        process = await asyncio.to_thread(bcd, "iam", *arguments, **(environment or owner))
        return process.returncode, process.stdout + process.stderr

    token = provider.token(sub="eve")
    assert await code(world, token) == "UNAUTHENTICATED"
    subject = f"{provider.url}|eve"
    assert await iam("login-add", "acme", "Eve", "eve", "--role", "operator") == (0, f"{subject} signs in as Eve.\n")
    assert await code(world, token) == "OK"
    for arguments, words in (
        (["login-add", "acme", "Eve", "another"], "another subject"),
        (["login-add", "globex", "Eve", "eve"], "another identity"),
        (["login-add", "nobody", "Eve", "eve"], "no tenant"),
        (["login-add", "acme", "Eve", "eve", "--role", "god"], "not one"),
        (["login-remove", "nobody"], "no identity"),
    ):
        status, line = await iam(*arguments)
        assert (status, words in line, line.count("\n")) == (1, True, 1), line
    without = {"BC_DATABASE_URL": database_url}
    assert (await iam("login-remove", "eve", **without)) == (
        1,
        "bcd: BC_OIDC_ISSUER is required: a subject is one of an issuer\n",
    )
    assert await iam("login-remove", "eve") == (0, "Removed.\n")
    assert await code(world, token) == "UNAUTHENTICATED"
