"""The registry of operations: each has a name, a kind of caller, an input, a function and an answer.

Every door calls operations through it. Registering an operation makes its HTTP method and its entry in the OpenAPI
document. An operator's operation also has a GraphQL root field, which calls it.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from models.errors import ApiError
from models.journal import journal
from models.pages import ALL, PageSelection
from resolvers.op import Op
from schema.inputs import Input

In = TypeVar("In", bound=Input)
Parts = ParamSpec("Parts")
Out = TypeVar("Out")


@dataclass(frozen=True, slots=True)
class Operation(Generic[In, Out]):
    """An operation of the API: ``POST /api/compute/{resource}/{method}``."""

    name: str
    """Such as ``siteTokens.create``. Audit rows, logs and metrics have it."""
    path: str
    """The path of its HTTP method."""
    caller: type
    """The type of its function's first parameter: Op for operators, else a request of an agent or anonymous visitor."""
    input: type[In]
    record: type
    """The type of the row that it answers. If it is ``paged``, it answers a page of them."""
    paged: bool
    run: Callable[..., Awaitable[Out]]
    uses: tuple[type, ...]
    """The types of the server's parts that its function takes after the input."""

    @property
    def resource(self) -> str:
        """The first part of the name, such as ``siteTokens`` of ``siteTokens.create``."""
        return self.name.partition(".")[0]

    @property
    def description(self) -> str:
        """The public description: the docstring of its function."""
        return inspect.getdoc(self.run) or ""

    async def __call__(self, request: Any, params: In, selection: PageSelection = ALL) -> Out:
        """Runs it for the caller of ``request``: a RequestContext if ``caller`` is Op, else an instance of ``caller``.

        A page that it lists holds what ``selection`` names. If no change has written the decision to the audit trail
        (after a denial, or a refusal that follows it), the row is written here, in its own transaction. Raises
        ApiError.
        """
        parts = [request.services[kind] for kind in self.uses] if self.uses else ()
        if self.caller is not Op:
            return await self.run(request, params, *parts)
        op = Op(self.name, request.actor, request.request_id, request.services.access, selection)
        try:
            return await self.run(op, params, *parts)
        except ApiError as error:
            if op.decided is not None:
                async with op.database.transaction() as tx:
                    await journal.audit(tx, op.decided._replace(outcome=error.code.value))
            raise

    def input_of(self, **arguments: Any) -> In:
        """Returns the input made of GraphQL arguments. Raises ApiError INVALID_ARGUMENT that names every bad one."""
        return self.input.of_arguments(**arguments)


OPERATIONS: list[Operation[Any, Any]] = []
"""Every operation of operators, in the order of definition. ``resolvers.agent_operations`` has those of site agents."""


def operation(
    name: str, record: type, *, paged: bool = False, path: str | None = None
) -> Callable[[Callable[Concatenate[Any, In, Parts], Awaitable[Out]]], Operation[In, Out]]:
    """Registers a function as the operation ``name``. It answers ``record``, or a page of them if ``paged``.

    The function's annotations tell its caller and its input. The first parameter is the kind of caller, the second the
    input. Each further parameter is a part of the server, found by its type.
    """

    def register(run: Callable[Concatenate[Any, In, Parts], Awaitable[Out]]) -> Operation[In, Out]:
        signature = inspect.signature(run, eval_str=True)
        caller, input_type, *uses = (parameter.annotation for parameter in signature.parameters.values())
        registered: Operation[In, Out] = Operation(
            name=name,
            path=path or f"/api/compute/{name.replace('.', '/')}",
            caller=caller,
            input=input_type,
            record=record,
            paged=paged,
            run=run,
            uses=tuple(uses),
        )
        if caller is Op:
            OPERATIONS.append(registered)
        return registered

    return register
