"""Compiles a validated operation, once, to Python code for its selection.

graphql-core passes every field of every row through a resolver, a check for awaitables and a serializer. The generated
code (`codegen`) reads the plain members of rows directly. It leaves everything else to graphql-core's executor
(`execution`).
"""

from collections import OrderedDict
from types import CoroutineType
from typing import Any

from graphql import (
    DirectiveNode,
    DocumentNode,
    ExecutionResult,
    FieldNode,
    FragmentDefinitionNode,
    GraphQLError,
    GraphQLSchema,
    OperationDefinitionNode,
    OperationType,
    Visitor,
    visit,
)
from graphql.execution.collect_fields import FragmentDetails
from graphql.execution.values import VariableValues
from graphql.pyutils import is_awaitable

from engine.execution import Execution
from engine.plan import Plan
from engine.variables import variables_of

MAX_PLANS = 16
"""The most combinations of values of ``@skip`` and ``@include`` variables that one operation keeps code for."""

_CONDITIONS = {"skip", "include"}


class CompiledOperation:
    """An operation that runs as generated code. `compile_operation` makes it, and the caller keeps it and shares it."""

    def __init__(
        self,
        schema: GraphQLSchema,
        operation: OperationDefinitionNode,
        fragments: dict[str, FragmentDefinitionNode],
        conditions: tuple[str, ...],
    ) -> None:
        self.schema = schema
        self.operation = operation
        self.fragment_definitions = fragments
        self.fragments = {name: FragmentDetails(fragment) for name, fragment in fragments.items()}
        self._conditions = conditions
        self._plans: OrderedDict[tuple[Any, ...], Plan] = OrderedDict()

    async def execute(self, root_value: Any, context_value: Any, variable_values: VariableValues) -> ExecutionResult:
        """Returns the result that graphql-core's ``execute`` would return. Never raises an error of a resolver.

        ``variable_values`` come from graphql-core's ``get_variable_values`` for this operation. ``data`` may hold times
        in UTC as ``datetime``: the caller serialises it by orjson with ``OPT_UTC_Z``.
        """
        execution = Execution(self, root_value, context_value, variable_values)
        errors = execution.collected_errors
        try:
            execution.plan = self._plan(variable_values)
            data = execution.plan.start(root_value, execution)
            if type(data) is CoroutineType or is_awaitable(data):
                data = await data
        except GraphQLError as error:
            errors.add(error, None)
            data = None
        return ExecutionResult(data, errors.errors or None)

    def _plan(self, variable_values: VariableValues) -> Plan:
        """Returns the code for these values of conditions' variables. Raises GraphQLError if a condition is null."""
        coerced = variable_values.coerced
        key = tuple([coerced.get(name) for name in self._conditions]) if self._conditions else ()
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = Plan(
                self.schema, self.operation, self.fragments, _subset(variable_values, self._conditions)
            )
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        return plan


def _subset(values: VariableValues, names: tuple[str, ...]) -> VariableValues:
    """Returns the values of these variables alone. What is kept with the code must not hold a caller's other values."""
    return VariableValues(
        {name: values.sources[name] for name in names if name in values.sources},
        {name: values.coerced[name] for name in names if name in values.coerced},
    )


# --- which operations can be compiled --------------------------------------------------------------------------------


def compile_operation(
    schema: GraphQLSchema, document: DocumentNode, operation_name: str | None
) -> CompiledOperation | None:
    """Returns the operation of that name, or the only one, as code. Returns None if graphql-core has to run it.

    graphql-core runs introspection, subscriptions, directives other than ``@skip`` and ``@include``, and fragment
    variables. The caller has validated ``document`` against ``schema``. No code is generated before the first
    execution.
    """
    operations = [node for node in document.definitions if isinstance(node, OperationDefinitionNode)]
    if operation_name is not None:
        operations = [node for node in operations if node.name and node.name.value == operation_name]
    if len(operations) != 1 or operations[0].operation is OperationType.SUBSCRIPTION:
        return None
    if schema.get_root_type(operations[0].operation) is None:
        return None
    fragments = {node.name.value: node for node in document.definitions if isinstance(node, FragmentDefinitionNode)}
    features = _Features()
    for node in (operations[0], *fragments.values()):
        visit(node, features)
    if features.unsupported or any(fragment.variable_definitions for fragment in fragments.values()):
        return None
    return CompiledOperation(schema, operations[0], fragments, tuple(sorted(features.conditions)))


class _Features(Visitor):
    """Finds out whether a document has features that cannot be compiled, and which variables its conditions use."""

    def __init__(self) -> None:
        super().__init__()
        self.unsupported = False
        self.conditions: set[str] = set()

    def enter_field(self, node: FieldNode, *_: Any) -> None:
        """Notes introspection, which graphql-core runs."""
        self.unsupported |= node.name.value in {"__schema", "__type"}

    def enter_directive(self, node: DirectiveNode, *_: Any) -> None:
        """Notes the variables of a condition. Notes any other directive, which graphql-core runs."""
        self.unsupported |= node.name.value not in _CONDITIONS
        self.conditions |= variables_of(node.arguments)
