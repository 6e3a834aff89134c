"""Serves GraphQL over WebSockets, by the ``graphql-transport-ws`` protocol alone.

Strawberry has a handler of its own, but it would bypass the engine's limits and the masks of errors, and its legacy
protocol let a client skip ``connection_init``. This module therefore implements the protocol over
``GraphQL.subscribe``.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from doors.authentication import Authenticate
from doors.graphql import Answer, GraphQL
from models.errors import ApiError, ErrorCode, unavailable
from models.ids import new_id
from models.sensitive import BearerToken
from services.requests import RequestContext

PROTOCOL = "graphql-transport-ws"
INIT_TIMEOUT_SECONDS = 10.0
MAX_MESSAGE_CHARACTERS = 131_072
MAX_ID_CHARACTERS = 128


class _ClosedError(Exception):
    """Closes the connection with a code of the protocol."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class GraphQLSocketEndpoint:
    """Accepts WebSockets and speaks the protocol on each, as an ASGI application."""

    def __init__(
        self, graphql: GraphQL, authenticate: Authenticate, *, allowed_origins: Sequence[str], max_operations: int
    ) -> None:
        """``allowed_origins`` may connect beside the server's own origin.

        A browser sends the origin of its page. A page of another site must not connect with a visitor's credential.
        """
        self._graphql = graphql
        self._authenticate = authenticate
        self._allowed_origins = frozenset(allowed_origins)
        self._max_operations = max_operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one connection until either side closes it."""
        socket = WebSocket(scope, receive, send)
        if not self._origin_allowed(socket):
            await socket.close(4403, "Forbidden")
            return
        if PROTOCOL not in scope.get("subprotocols", ()):
            await socket.accept()
            await socket.close(4406, "Subprotocol not acceptable")
            return
        await socket.accept(PROTOCOL)
        connection = _Connection(self._graphql, self._authenticate, self._max_operations, socket)
        try:
            await connection.run()
        except _ClosedError as closed:
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await socket.close(closed.code, closed.reason)
        except WebSocketDisconnect:
            pass
        finally:
            await connection.end()

    def _origin_allowed(self, socket: WebSocket) -> bool:
        origin = socket.headers.get("origin")
        if origin is None:  # the client is not a browser
            return True
        return origin in self._allowed_origins or urlsplit(origin).netloc == socket.headers.get("host")


class _Connection:
    """One WebSocket, its caller, and the operations that run on it."""

    def __init__(self, graphql: GraphQL, authenticate: Authenticate, max_operations: int, socket: WebSocket) -> None:
        self._graphql = graphql
        self._authenticate = authenticate
        self._max_operations = max_operations
        self._socket = socket
        self._context: RequestContext | None = None
        self._operations: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Handles messages until the connection ends.

        Raises _ClosedError if the client breaks the protocol, and WebSocketDisconnect if it leaves.
        """
        try:
            async with asyncio.timeout(INIT_TIMEOUT_SECONDS):
                await self._init(await self._message())
        except TimeoutError:
            raise _ClosedError(4408, "Connection initialisation timeout") from None
        while True:
            message = await self._message()
            match message.get("type"):
                case "ping":
                    await self._send({"type": "pong"})
                case "pong":
                    pass
                case "subscribe":
                    self._subscribe(message)
                case "complete":
                    task = self._operations.pop(str(message.get("id")), None)
                    if task is not None:
                        task.cancel()
                case "connection_init":
                    raise _ClosedError(4429, "Too many initialisation requests")
                case _:
                    raise _ClosedError(4400, "Unknown message type")

    async def end(self) -> None:
        """Stops the operations that still run."""
        tasks = list(self._operations.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _init(self, message: dict[str, Any]) -> None:
        if message.get("type") != "connection_init":
            raise _ClosedError(4401, "Unauthorized")
        payload = message.get("payload")
        member = payload.get("authorization") if isinstance(payload, dict) else None
        authorization = member if isinstance(member, str) else self._socket.headers.get("authorization", "")
        scheme, _, text = authorization.partition(" ")
        credential = BearerToken(text) if scheme.lower() == "bearer" and text else None
        try:
            self._context = await self._authenticate(credential, new_id("req"))
        except Exception as error:
            if isinstance(error, ApiError) and error.code is ErrorCode.UNAUTHENTICATED:
                raise _ClosedError(4403, "Forbidden") from None
            if isinstance(error, ApiError) or unavailable(error) is not None:
                # 1013 tells the client to try again later (the registry of RFC 6455).
                raise _ClosedError(1013, "Try again later") from None
            raise
        await self._send({"type": "connection_ack"})

    def _subscribe(self, message: dict[str, Any]) -> None:
        id_, payload = message.get("id"), message.get("payload")
        if not isinstance(id_, str) or not 0 < len(id_) <= MAX_ID_CHARACTERS or not isinstance(payload, dict):
            raise _ClosedError(4400, "Invalid message")
        query, variables, name = (payload.get(member) for member in ("query", "variables", "operationName"))
        if not isinstance(query, str) or not isinstance(variables, dict | None) or not isinstance(name, str | None):
            raise _ClosedError(4400, "Invalid message")
        if id_ in self._operations:
            raise _ClosedError(4409, "Subscriber already exists")
        if len(self._operations) >= self._max_operations:
            raise _ClosedError(4429, "Too many operations")
        if self._context is None:
            raise _ClosedError(4401, "Unauthorized")
        # Each operation is a request of its own, so that it does not read rows that another one's loaders remember.
        context = self._context.renewed(new_id("req"))
        task = asyncio.create_task(self._run(id_, query, variables, name, context))
        self._operations[id_] = task

    async def _run(
        self, id_: str, query: str, variables: dict[str, Any] | None, name: str | None, context: RequestContext
    ) -> None:
        try:
            if await context.reauthenticate() is None:
                await self._socket.close(4403, "Forbidden")
                return
            answers = await self._graphql.subscribe(query, variables, name, context)
            if isinstance(answers, Answer):
                await self._answer(id_, answers)
            else:
                await self._stream(id_, answers)
            self._operations.pop(id_, None)
            if not (isinstance(answers, Answer) and not answers.executed):  # an ``error`` message ends the operation
                await self._send({"type": "complete", "id": id_})
        except (RuntimeError, WebSocketDisconnect):  # the client left in the middle of an answer
            return

    async def _stream(self, id_: str, answers: AsyncIterator[Answer]) -> None:
        async with contextlib.aclosing(answers):  # type: ignore[type-var]
            async for answer in answers:
                await self._answer(id_, answer)

    async def _answer(self, id_: str, answer: Answer) -> None:
        """Sends ``next`` with the answer's bytes, or, if the operation was refused, ``error`` with its errors alone."""
        kind, payload = "next", answer.body
        if not answer.executed:
            kind, payload = "error", orjson.dumps(orjson.loads(answer.body)["errors"])
        quoted = orjson.dumps(id_).decode()
        await self._socket.send_text(f'{{"type":"{kind}","id":{quoted},"payload":{payload.decode()}}}')

    async def _send(self, message: dict[str, Any]) -> None:
        await self._socket.send_text(orjson.dumps(message).decode())

    async def _message(self) -> dict[str, Any]:
        received = await self._socket.receive()
        if received["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(received.get("code", 1000))
        text = received.get("text")
        if text is None or len(text) > MAX_MESSAGE_CHARACTERS:
            raise _ClosedError(4400, "Invalid message")
        try:
            message = orjson.loads(text)
        except orjson.JSONDecodeError:
            message = None
        if not isinstance(message, dict):
            raise _ClosedError(4400, "Invalid message")
        return message
