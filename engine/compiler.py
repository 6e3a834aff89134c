"""Compiles a validated operation, once, to Python code for its selection.

graphql-core walks every field of every row through a resolver, an awaitable check and a serializer. Generated code
reads the plain members of rows instead (`codegen`), and leaves everything else to graphql-core's executor
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
"""How many combinations of the variables of ``@skip`` and ``@include`` one operation keeps code for."""

_CONDITIONS = {"skip", "include"}


class CompiledOperation:
    """An operation that runs as code of its own. Made by `compile_operation`, kept and shared by the caller."""

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
        """What graphql-core's ``execute`` answers; never raises for what a resolver does.

        ``variable_values`` come from graphql-core's ``get_variable_values`` for this operation. In ``data``, times in
        UTC may be left as ``datetime``: the caller writes it by orjson with ``OPT_UTC_Z``.
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
        """The code for this combination of conditions. Raises GraphQLError if a condition is null."""
        coerced = variable_values.coerced
        key = tuple([coerced.get(name) for name in self._conditions]) if self._conditions else ()
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = Plan(
                self.schema, self.operation, self.fragments, _only(variable_values, self._conditions)
            )
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        return plan


def _only(values: VariableValues, names: tuple[str, ...]) -> VariableValues:
    """The values of these variables. What is kept with the code must not hold a caller's values."""
    return VariableValues(
        {name: values.sources[name] for name in names if name in values.sources},
        {name: values.coerced[name] for name in names if name in values.coerced},
    )


# --- what can be compiled --------------------------------------------------------------------------------------------


def compile_operation(
    schema: GraphQLSchema, document: DocumentNode, operation_name: str | None
) -> CompiledOperation | None:
    """The operation of that name, or the only one, as code; None if graphql-core has to run it.

    None for introspection, subscriptions, directives other than ``@skip`` and ``@include``, and fragment variables.
    The caller has validated ``document`` against ``schema``. Nothing is generated before the first execution.
    """
    operations = [node for node in document.definitions if isinstance(node, OperationDefinitionNode)]
    if operation_name is not None:
        operations = [node for node in operations if node.name and node.name.value == operation_name]
    if len(operations) != 1 or operations[0].operation is OperationType.SUBSCRIPTION:
        return None
    if schema.get_root_type(operations[0].operation) is None:
        return None
    fragments = {node.name.value: node for node in document.definitions if isinstance(node, FragmentDefinitionNode)}
    seen = _Seen()
    for node in (operations[0], *fragments.values()):
        visit(node, seen)
    if seen.foreign or any(fragment.variable_definitions for fragment in fragments.values()):
        return None
    return CompiledOperation(schema, operations[0], fragments, tuple(sorted(seen.conditions)))


class _Seen(Visitor):
    """Whether a document holds what cannot be compiled, and the variables that its fields depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign = False
        self.conditions: set[str] = set()

    def enter_field(self, node: FieldNode, *_: Any) -> None:
        """Introspection is graphql-core's."""
        self.foreign |= node.name.value in {"__schema", "__type"}

    def enter_directive(self, node: DirectiveNode, *_: Any) -> None:
        """Conditions are ours, other directives are not."""
        self.foreign |= node.name.value not in _CONDITIONS
        self.conditions |= variables_of(node.arguments)
