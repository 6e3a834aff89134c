"""Authentication: finds out who sent a request, by operators' API keys and logins, and by agents' JWTs."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.types import Scope

from doors.http import Network, client_address, credential, fields_in, request_id
from models.errors import ApiError, ErrorCode
from models.sensitive import BearerToken
from resolvers.op import Op
from services.parts import Services
from services.requests import AgentRequest, AnonymousRequest, RequestContext, UntakenAgentRequest

Authenticate = Callable[[BearerToken | None, str], Awaitable[RequestContext]]
"""Makes an operator's request from its credential and its id. Raises ApiError UNAUTHENTICATED or UNAVAILABLE."""

Enter = Callable[[Scope], Awaitable[Any]]
"""Makes a caller's request from an HTTP request. Raises ApiError UNAUTHENTICATED or UNAVAILABLE."""


def authenticator(services: Services) -> Authenticate:
    """Returns the function that authenticates operators, by API key or by the login of a trusted issuer.

    It answers absent, malformed, unknown, expired and revoked credentials with the same UNAUTHENTICATED.
    """
    keyring, issuers = services.callers.keyring, services.callers.issuers

    async def authenticate(credential: BearerToken | None, request_id: str) -> RequestContext:
        if credential is not None:
            actor = keyring.known(credential) or await keyring.by_key(credential)
            if actor is not None:
                return RequestContext(actor, request_id, services, credential)
            for issuer in issuers:
                login = await issuer.verify(credential)
                actor = None if login is None else await keyring.by_subject(login.subject)
                if login is not None and actor is not None:
                    return RequestContext(actor, request_id, services, login)
        raise ApiError(ErrorCode.UNAUTHENTICATED)

    return authenticate


def entries(services: Services, trusted_proxies: Sequence[Network]) -> dict[type, Enter]:
    """Returns, for each kind of caller (operator, visitor, agent), the function that authenticates its requests.

    The JWT of an UntakenAgentRequest is verified here, and taken by the operation.
    """
    authenticate = authenticator(services)
    keyring = services.callers.agents

    async def operator(scope: Scope) -> RequestContext:
        return await authenticate(credential(fields_in(scope)), request_id(scope))

    async def anonymous(scope: Scope) -> AnonymousRequest:
        return AnonymousRequest(client_address(scope, trusted_proxies), request_id(scope), services)

    async def untaken(scope: Scope) -> UntakenAgentRequest:
        address, token = client_address(scope, trusted_proxies), credential(fields_in(scope))
        jwt = None if token is None else await keyring.recognize(token)
        if jwt is None:
            raise ApiError(ErrorCode.UNAUTHENTICATED)
        return UntakenAgentRequest(address, request_id(scope), services, jwt)

    async def agent(scope: Scope) -> AgentRequest:
        request = await untaken(scope)
        if not await keyring.take(request.jwt, address=request.address):
            raise ApiError(ErrorCode.UNAUTHENTICATED)
        return AgentRequest(request.address, request.request_id, services, request.jwt.agent)

    return {Op: operator, AnonymousRequest: anonymous, AgentRequest: agent, UntakenAgentRequest: untaken}
