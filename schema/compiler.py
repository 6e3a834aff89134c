"""A validated operation becomes, once, Python code for its selection.

graphql-core walks every field of every row through a resolver, an awaitable check and a serializer. Here the rows'
plain members are read by straight-line code instead, and whatever is out of the ordinary goes to graphql-core's own
executor at that very place, so that the answer is graphql-core's answer, errors and their order included.
"""

from typing import Any

from graphql import DocumentNode, ExecutionResult, GraphQLSchema
from graphql.execution.values import VariableValues


class CompiledOperation:
    """An operation that runs as code of its own. Made by `compile_operation`, kept and shared by the caller."""

    async def execute(self, root_value: Any, context_value: Any, variable_values: VariableValues) -> ExecutionResult:
        """What graphql-core's ``execute`` answers; never raises for what a resolver does.

        ``variable_values`` come from graphql-core's ``get_variable_values`` for this operation. In ``data``, times in
        UTC may be left as ``datetime``: the caller writes it by orjson with ``OPT_UTC_Z``.
        """
        raise NotImplementedError


def compile_operation(
    schema: GraphQLSchema, document: DocumentNode, operation_name: str | None
) -> CompiledOperation | None:
    """The operation of that name, or the only one, as code; None if graphql-core has to run it.

    None for introspection, subscriptions, directives other than ``@skip`` and ``@include``, and fragment variables.
    The caller has validated ``document`` against ``schema``. Nothing is generated before the first execution.
    """
    return None
