"""The registry: each operation once, with its input, its work and its answer. GraphQL and HTTP both call it here.

Registering an operation makes its HTTP method and its entry in the OpenAPI document; the GraphQL roots name it too.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from models import journal
from models.errors import ApiError
from models.pages import ALL, Asked
from schema.context import Op, RequestContext, Visit
from schema.inputs import Input

In = TypeVar("In", bound=Input)
By = TypeVar("By", bound=Visit)
Out = TypeVar("Out")


@dataclass(frozen=True, slots=True)
class Operation(Generic[In, Out]):
    """An operation of the API: ``POST /api/compute/{resource}/{method}`` and a GraphQL root field."""

    name: str
    """``siteTokens.create``: in audit rows, logs and metrics."""
    input: type[In]
    record: type
    paged: bool
    run: Callable[[Op, In], Awaitable[Out]]

    @property
    def resource(self) -> str:
        """``siteTokens``, of ``siteTokens.create``."""
        return self.name.partition(".")[0]

    @property
    def path(self) -> str:
        """Where its HTTP method is."""
        return _path(self.name)

    @property
    def description(self) -> str:
        """What it promises: the docstring of its function."""
        return inspect.getdoc(self.run) or ""

    async def __call__(self, request: RequestContext, given: In, asked: Asked = ALL) -> Out:
        """Run it for the caller of ``request`` on a validated input; a page it lists holds what is ``asked``.

        A decision that no change has written to the audit trail (a denial, or a refusal after it) is written here, in
        a transaction of its own. Raises ApiError.
        """
        op = Op(self.name, request.actor, request.request_id, request.services, asked)
        try:
            return await self.run(op, given)
        except ApiError as error:
            if op.decided is not None:
                async with op.database.transaction() as tx:
                    await journal.audit(tx, op.decided._replace(outcome=error.code.value))
            raise

    def input_of(self, **members: Any) -> In:
        """The input, made of GraphQL arguments. Raises ApiError INVALID_ARGUMENT with every bad one."""
        return self.input.of_arguments(**members)


OPERATIONS: list[Operation[Any, Any]] = []
"""Every operation, in the order of its definition."""


def operation(
    resource: str, method: str, record: type, *, paged: bool = False
) -> Callable[[Callable[[Op, In], Awaitable[Out]]], Operation[In, Out]]:
    """Register a function as an operation. ``record`` is the row type it answers, a page of them if ``paged``."""

    def register(run: Callable[[Op, In], Awaitable[Out]]) -> Operation[In, Out]:
        given: type[In] = inspect.signature(run, eval_str=True).parameters["given"].annotation
        registered = Operation(f"{resource}.{method}", given, record, paged, run)
        OPERATIONS.append(registered)
        return registered

    return register


def _path(name: str) -> str:
    return f"/api/compute/{name.replace('.', '/')}"


@dataclass(frozen=True, slots=True)
class AgentMethod(Generic[By, In, Out]):
    """A method of the agents' door: HTTP only. ``visit``: the kind of request it takes."""

    name: str
    path: str
    input: type[In]
    record: type
    run: Callable[[By, In], Awaitable[Out]]
    visit: type[By]
    paged: ClassVar[bool] = False

    @property
    def signed(self) -> bool:
        """Whether the request carries an agent's JWT."""
        return self.visit is not Visit

    @property
    def resource(self) -> str:
        """``siteAgents``, of ``siteAgents.enroll``."""
        return self.name.partition(".")[0]

    @property
    def description(self) -> str:
        """What it promises: the docstring of its function."""
        return inspect.getdoc(self.run) or ""

    async def __call__(self, visit: By, given: In) -> Out:
        """Run it for a visitor on a validated input. Raises ApiError."""
        return await self.run(visit, given)


def agent_method(
    name: str, record: type, *, path: str | None = None
) -> Callable[[Callable[[By, In], Awaitable[Out]]], AgentMethod[By, In, Out]]:
    """Make a function a method of the agents' door. What it takes first says whether it is signed for: an AgentVisit, a
    ProvenVisit, or a Visit of whoever comes. ``record`` is the row type it answers.
    """

    def make(run: Callable[[By, In], Awaitable[Out]]) -> AgentMethod[By, In, Out]:
        visit, given = (parameter.annotation for parameter in inspect.signature(run, eval_str=True).parameters.values())
        return AgentMethod(name, path or _path(name), given, record, run, visit)

    return make
