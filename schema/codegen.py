"""Writes the Python of a selection: one function for its object, and one comprehension for a list of plain rows.

The generated code only handles what is plain: a member that is there and has the very type that its GraphQL type
writes. At anything else it hands the value, in its place, to the execution, which is graphql-core's (see `compiler`).
"""

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import Enum
from types import CoroutineType, MemberDescriptorType
from typing import Any, NamedTuple, Protocol

from graphql import (
    FieldNode,
    GraphQLBoolean,
    GraphQLEnumType,
    GraphQLField,
    GraphQLFloat,
    GraphQLID,
    GraphQLInt,
    GraphQLList,
    GraphQLNonNull,
    GraphQLObjectType,
    GraphQLScalarType,
    GraphQLString,
    default_field_resolver,
)
from graphql.pyutils import Undefined, is_awaitable
from strawberry.types.field import StrawberryField

from schema.scalars import format_datetime

Run = Callable[[Any, Any, Any], Any]
"""``run(source, path, execution)``: the object's answer, or a coroutine of it. Raises where a non-null field is null."""

MAX_UNPACKED = 3
"""A row is unpacked rather than read by attribute if it has at most this many members for each that is selected."""


def member(source: Any, name: str) -> Any:
    """A field without a resolver of its own: a member of a dict, or an attribute of a row.

    The schema's ``StrawberryConfig.default_resolver``; the generated code does the same in line.
    """
    return source[name] if type(source) is dict else getattr(source, name)


class InstancesOf:
    """An ``is_type_of`` that goes by nothing but the value's class, so that one look at a class does for all its rows."""

    def __init__(self, *classes: type) -> None:
        self.classes = classes

    def __call__(self, value: object, _info: object) -> bool:
        """Whether ``value`` is an instance of one of the classes."""
        return isinstance(value, self.classes)


class Planned(Protocol):
    """What the generated code needs to know of a field of a selection; `compiler.FieldPlan` is one."""

    key: str
    parent: GraphQLObjectType
    definition: GraphQLField
    nodes: list[FieldNode]
    arguments: dict[str, Any] | None
    run: Run

    def rows_plan(self) -> "list[Planned]":
        """The fields of its object type's selection. Raises GraphQLError if they cannot be collected."""


class Leaf(NamedTuple):
    """A leaf type whose plain values need no call: ``test`` tells them, ``value`` is what is answered for them."""

    test: str
    value: str
    names: dict[str, Any]


_LEAVES: dict[Any, tuple[str, dict[str, Any]]] = {
    GraphQLString.coerce_output_value: ("type({v}) is str", {}),
    GraphQLID.coerce_output_value: ("type({v}) is str", {}),
    GraphQLBoolean.coerce_output_value: ("type({v}) is bool", {}),
    GraphQLInt.coerce_output_value: ("type({v}) is int and -2147483648 <= {v} <= 2147483647", {}),
    GraphQLFloat.coerce_output_value: ("type({v}) is float and {v} - {v} == 0.0", {}),
    # orjson writes a datetime in UTC as format_datetime does, and faster
    format_datetime: ("type({v}) is datetime and {v}.tzinfo is UTC", {"datetime": datetime, "UTC": UTC}),
}


def leaf_of(type_: Any) -> Leaf | None:
    """How the values of a nullable leaf type are told and written in line; None if only its own serializer knows."""
    if isinstance(type_, GraphQLScalarType):
        test, names = _LEAVES.get(type_.coerce_output_value, ("", {}))
        return Leaf(test, "{v}", names) if test else None
    enum = getattr(type_, "wrapped_cls", None)
    if not (isinstance(type_, GraphQLEnumType) and isinstance(enum, type) and issubclass(enum, Enum)):
        return None
    name = f"enum_{type_.name}"
    try:
        answers = {id(value): type_.coerce_output_value(value) for value in enum}
    except Exception:  # noqa: BLE001 - a value outside of the GraphQL enum: its own error at the time
        return None
    test = f"type({{v}}) is {name}"
    if all(answers[id(value)] == value._name_ for value in enum):
        return Leaf(test, "{v}._name_", {name: enum})
    return Leaf(test, f"{name}_[id({{v}})]", {name: enum, f"{name}_": answers})


def unwrapped(type_: Any) -> tuple[Any, bool]:
    """The nullable type, and whether it may be null."""
    return (type_.of_type, False) if isinstance(type_, GraphQLNonNull) else (type_, True)


class _Module:
    """Lines of Python and the names they use."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"C": CoroutineType, "pend": _pend}

    def add(self, depth: int, *lines: str) -> None:
        self.lines.extend("    " * depth + line for line in lines)

    def function(self, name: str) -> Any:
        exec(compile("\n".join(self.lines), f"<selection {name}>", "exec"), self.names)  # noqa: S102 - see module
        return self.names[name]


def _pend(waiting: dict[Any, Any] | None, key: Any, value: Any) -> dict[Any, Any]:
    if waiting is None:
        return {key: value}
    waiting[key] = value
    return waiting


# --- one object ------------------------------------------------------------------------------------------------------


def object_function(type_: GraphQLObjectType, fields: list[Any]) -> Run:
    """The function that answers an object of ``type_``, field by field in order.

    A name of the document stands in the code only as a string's ``repr``.
    """
    module = _Module()
    module.add(0, "def run(s, p, x):", "    w = None", "    try:", "        plain = type(s) is not dict")
    answer = []
    for number, field in enumerate(fields):
        if field.nodes[0].name.value == "__typename":
            answer.append(f"{field.key!r}: {type_.name!r}")
        else:
            _write_field(module, number, field)
            answer.append(f"{field.key!r}: v{number}")
    module.add(1, "except Exception:")
    module.add(2, "if w is not None:", "    x.settle_in_background([*w.values()])", "raise")
    module.add(1, f"r = {{{', '.join(answer)}}}", "return r if w is None else x.settle(r, w)")
    run: Run = module.function("run")
    return run


def _write_field(module: _Module, number: int, field: Any) -> None:
    v, f = f"v{number}", f"f{number}"
    module.names[f] = field
    path = f"(p, {field.key!r}, {field.parent.name!r})"
    module.add(2, "try:")
    info = _write_read(module, number, field, path)
    nullable_type, nullable = unwrapped(field.definition.type)
    otherwise = f"{v} = x.finish({f}, {path}, {v}{info})"
    pending = f"if type({v}) is C: w = pend(w, {field.key!r}, {v})"
    guarded = f"if type({v}) is C: w = pend(w, {field.key!r}, {v} := x.guard({f}, {path}, {v}))"
    leaf = leaf_of(nullable_type)
    item = unwrapped(nullable_type.of_type) if isinstance(nullable_type, GraphQLList) else None
    item_leaf = leaf_of(item[0]) if item else None
    unless_null = f"elif {v} is not None:" if nullable else "else:"
    if leaf:
        module.names |= leaf.names
        test, value = leaf.test.format(v=v), leaf.value.format(v=v)
        if value == v:
            guard = f"{v} is not None and " if nullable else ""
            module.add(3, f"if {guard}not ({test}):")
        else:
            module.add(3, f"if {test}: {v} = {value}", unless_null)
        module.add(4, otherwise, pending)
    elif item and item_leaf:
        module.names |= item_leaf.names
        module.add(3, f"if type({v}) is list and len(u := {_leaves(item_leaf, item[1], v)}) == len({v}): {v} = u")
        module.add(3, unless_null)
        module.add(4, otherwise, pending)
    elif item and isinstance(item[0], GraphQLObjectType):
        module.add(3, f"if type({v}) is list:", f"    {v} = x.rows({f}, {path}, {v})", f"    {guarded}")
        module.add(3, unless_null)
        module.add(4, otherwise, pending)
    elif isinstance(nullable_type, GraphQLObjectType):
        plain = f"t{number}"
        module.names[plain] = PlainClasses(nullable_type)
        module.add(3, f"if type({v}) in {plain} or {plain}.admits({v}):")
        module.add(4, f"{v} = {f}.run({v}, {path}, x)", guarded)
        module.add(3, unless_null)
        module.add(4, otherwise, pending)
    else:
        module.add(3, f"if {v} is not None:" if nullable else "if True:")
        module.add(4, otherwise, pending)
    module.add(2, "except Exception as e:", f"    {v} = x.fail({f}, {path}, e)")


def _write_read(module: _Module, number: int, field: Any, path: str) -> str:
    """Write how the field's value is got. Returns the argument that passes the resolve info on, if there is one."""
    v, f, name = f"v{number}", f"f{number}", plain_member(field.definition)
    if name is not None:
        resolver = _strawberry(field.definition).default_resolver
        if resolver is member:
            module.add(3, f"{v} = s.{name} if plain else s[{name!r}]")
        elif resolver is getattr:
            module.add(3, f"{v} = s.{name}")
        else:
            module.names[f"r{number}"] = resolver
            module.add(3, f"{v} = r{number}(s, {name!r})")
        return ""
    direct = _of_source_alone(field.definition)
    if direct is not None:
        module.names[f"r{number}"] = direct
        module.add(3, f"{v} = r{number}(s)")
        return ""
    module.names[f"r{number}"] = field.definition.resolve or default_field_resolver
    arguments = ""
    if field.arguments is None:
        arguments = f", **x.arguments({f})"
    elif field.arguments:
        module.names[f"a{number}"] = field.arguments
        arguments = f", **a{number}"
    module.add(3, f"i = x.info({f}, {path})", f"{v} = r{number}(s, i{arguments})")
    return ", i"


def _strawberry(definition: GraphQLField) -> Any:
    found = definition.extensions.get("strawberry-definition")
    return found if isinstance(found, StrawberryField) else None


def plain_member(definition: GraphQLField) -> str | None:
    """The Python name of a Strawberry field that is nothing but a member of its source; None for any other."""
    field = _strawberry(definition)
    code = getattr(definition.resolve, "__code__", None)
    # fields with an exception handler are basic too, but have another resolve function
    if field is None or not field.is_basic_field or getattr(code, "co_name", "") != "_get_basic_result":
        return None
    if type(field).get_result is not StrawberryField.get_result or not field.python_name.isidentifier():
        return None
    name: str = field.python_name
    return name


def _of_source_alone(definition: GraphQLField) -> Callable[[Any], Any] | None:
    """The resolver of a Strawberry field that takes its source and nothing else, so that it needs no wrapper."""
    field = _strawberry(definition)
    code = getattr(definition.resolve, "__code__", None)
    if field is None or getattr(code, "co_name", "") not in {"_resolver", "_async_resolver"}:
        return None
    closure = inspect.getclosurevars(definition.resolve).nonlocals if definition.resolve else {}
    resolver = field.base_resolver
    if resolver is None or field.extensions or field.arguments or closure.get("field_exception_handlers") != ():
        return None
    if type(field).get_result is not StrawberryField.get_result or not resolver.self_parameter:
        return None
    if resolver.parent_parameter or resolver.root_parameter or resolver.info_parameter:
        return None
    function: Callable[[Any], Any] = resolver.wrapped_func
    return function if inspect.isfunction(function) and field.is_async == inspect.iscoroutinefunction(function) else None


class PlainClasses(set[type]):
    """The classes of which values of an object type were seen that are neither null, nor awaitable, nor errors."""

    def __init__(self, type_: GraphQLObjectType) -> None:
        super().__init__()
        self._is_type_of = type_.is_type_of

    def admits(self, value: Any) -> bool:
        """Whether a value's class will do, for all its instances. If not, graphql-core looks at each by itself."""
        class_ = type(value)
        if value is None or value is Undefined or issubclass(class_, Exception):
            return False
        if is_awaitable(value) or hasattr(class_, "__getattr__"):
            return False
        if self._is_type_of is not None:
            test = self._is_type_of
            if not (isinstance(test, InstancesOf) and issubclass(class_, test.classes)):
                return False
        self.add(class_)
        return True


# --- a list of plain rows --------------------------------------------------------------------------------------------


class _NotPlainError(Exception):
    """This selection, or these rows, need the object function."""


class Rows(NamedTuple):
    """A comprehension over rows of one class: it answers the plain ones and leaves others out."""

    answer: Callable[[list[Any]], list[Any]]
    complete: bool
    """Whether every list within the rows that it was made from had an item; those without one it knows only empty."""


def rows_function(field: Any, rows: list[Any]) -> Rows | None:
    """The comprehension for rows like these; None if their selection or class needs the object function.

    Only for what can be read twice and none is the wiser, for the caller starts again if a row was left out.
    """
    writer = _Rows()
    try:
        clauses, value = writer.object_of(field.object_type, field.rows_plan(), "s", rows)
    except Exception:  # noqa: BLE001 - whatever is wrong is found again, and told, by the object function
        return None
    writer.module.add(0, "def rows(v):", f"    return [{value} for s in v {' '.join(clauses)}]")
    return Rows(writer.module.function("rows"), writer.complete)


class _Rows:
    def __init__(self) -> None:
        self.module = _Module()
        self.complete = True
        self._count = 0

    def _name(self, value: Any = None) -> str:
        self._count += 1
        name = f"n{self._count}"
        if value is not None:
            self.module.names[name] = value
        return name

    def object_of(
        self, type_: GraphQLObjectType, fields: list[Any], s: str, samples: list[Any]
    ) -> tuple[list[str], str]:
        """The clauses that read an object in ``s``, and the expression of its answer."""
        class_ = type(samples[0]) if samples else None
        if class_ is None or not PlainClasses(type_).admits(samples[0]):
            raise _NotPlainError
        clauses = [f"if type({s}) is {self._name(class_)}"]
        reads: dict[str, str] = {}
        for field in fields:
            name = plain_member(field.definition)
            if name is not None and name not in reads:
                reads[name] = self._name()
        clauses += self._reads(class_, fields, s, reads)
        answer = []
        for field in fields:
            if field.nodes[0].name.value == "__typename":
                answer.append(f"{field.key!r}: {type_.name!r}")
                continue
            name = plain_member(field.definition)
            if name is None:
                raise _NotPlainError
            values = [member(sample, name) for sample in samples if type(sample) is class_]
            more, value = self._value(field, reads[name], values)
            clauses += more
            answer.append(f"{field.key!r}: {value}")
        return clauses, f"{{{', '.join(answer)}}}"

    def _reads(self, class_: type, fields: list[Any], s: str, reads: dict[str, str]) -> Iterator[str]:
        resolvers = {_strawberry(f.definition).default_resolver for f in fields if plain_member(f.definition)}
        if not resolvers <= {member, getattr} or (class_ is dict and getattr in resolvers):
            raise _NotPlainError
        if class_ is dict:
            yield from (f"for {local} in ({s}[{name!r}],)" for name, local in reads.items())
            return
        if not all(_readable_twice(class_, name) for name in reads):
            raise _NotPlainError
        columns: tuple[str, ...] = getattr(class_, "_fields", ())
        unpackable = issubclass(class_, tuple) and class_.__iter__ is tuple.__iter__ and set(reads) <= set(columns)
        if unpackable and len(columns) <= MAX_UNPACKED * len(reads):
            targets = "".join(f"{reads.get(column, '_')}, " for column in columns)
            yield f"for ({targets}) in ({s},)"
        else:
            yield from (f"for {local} in ({s}.{name},)" for name, local in reads.items())

    def _value(self, field: Any, v: str, samples: list[Any]) -> tuple[list[str], str]:
        nullable_type, nullable = unwrapped(field.definition.type)
        leaf = leaf_of(nullable_type)
        if leaf:
            self.module.names |= leaf.names
            test, value = leaf.test.format(v=v), leaf.value.format(v=v)
            if not nullable:
                return [f"if {test}"], value
            return [f"if {v} is None or {test}"], value if value == v else f"None if {v} is None else {value}"
        if isinstance(nullable_type, GraphQLObjectType) and not nullable:
            return self.object_of(nullable_type, field.rows_plan(), v, samples)
        if isinstance(nullable_type, GraphQLList) and not nullable:
            return self._list(field, nullable_type, v, samples)
        raise _NotPlainError

    def _list(self, field: Any, type_: Any, v: str, samples: list[Any]) -> tuple[list[str], str]:
        item_type, nullable = unwrapped(type_.of_type)
        leaf = leaf_of(item_type)
        if leaf:
            self.module.names |= leaf.names
            inner = _leaves(leaf, nullable, v)
        elif isinstance(item_type, GraphQLObjectType):
            items = [item for sample in samples if type(sample) is list for item in sample]
            if not items:
                self.complete = False
                return [f"if type({v}) is list if not {v}"], "[]"
            s = self._name()
            clauses, value = self.object_of(item_type, field.rows_plan(), s, items)
            inner = f"[{value} for {s} in {v} {' '.join(clauses)}]"
        else:
            raise _NotPlainError
        out = self._name()
        return [f"if type({v}) is list for {out} in ({inner},) if len({out}) == len({v})"], out


def _leaves(leaf: Leaf, nullable: bool, v: str) -> str:
    """A comprehension over the list ``v`` that leaves out what is not plain."""
    test, value = leaf.test.format(v="i"), leaf.value.format(v="i")
    if nullable:
        value = value if value == "i" else f"(None if i is None else {value})"
        test = f"i is None or {test}"
    return f"[{value} for i in {v} if {test}]"


_DESCRIPTORS = (MemberDescriptorType, type(NamedTuple("_Probe", [("x", int)]).x))  # type: ignore[attr-defined]


def _readable_twice(class_: type, name: str) -> bool:
    """Whether the attribute is a stored value: no property, no ``__getattr__``, nothing that runs when it is read."""
    if hasattr(class_, "__getattr__") or class_.__getattribute__ not in {
        object.__getattribute__,
        tuple.__getattribute__,
    }:
        return False
    found = inspect.getattr_static(class_, name, None)
    return isinstance(found, _DESCRIPTORS) or not hasattr(type(found), "__get__")
