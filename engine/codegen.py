"""Generates Python code for a selection: a function for one object, and a comprehension for a list of plain rows.

The generated code handles only plain values (`plain` defines the term). It passes any other value, at its place in the
result, to the execution, which lets graphql-core's executor handle it (see `execution`).
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CoroutineType
from typing import Any, NamedTuple, Protocol, cast

from graphql import FieldNode, GraphQLField, GraphQLList, GraphQLObjectType, default_field_resolver

from engine.fields import Direct, plain_member, strawberry_field
from engine.leaves import Leaf, leaf_of
from engine.plain import PlainClasses, WrappedList, member, readable_twice, unwrapped

Run = Callable[[Any, Any, Any], Any]
"""``run(source, path, execution)`` returns an object's result or a coroutine of it. Raises if a non-null is null."""

MAX_UNPACKED = 3
"""A row is unpacked, not read attribute by attribute, if it has at most this many members for each selected one."""


class PlannedField(Protocol):
    """What the code generator reads from a selected field. `plan.FieldPlan` implements it."""

    key: str
    parent: GraphQLObjectType
    definition: GraphQLField
    nodes: list[FieldNode]
    object_type: GraphQLObjectType | None
    """The object type of the field's value or of the items of its lists. None if they are of another type."""
    arguments: dict[str, Any] | None
    """The arguments if they are the same for every request. None otherwise."""
    direct: Direct | None
    keywords: dict[str, Any] | None
    """The keyword arguments of ``direct`` if they are the same for every request. None otherwise."""

    def selected_fields(self) -> "list[Any]":
        """Returns the selected fields of ``object_type``. Raises GraphQLError if they cannot be collected."""


class _ModuleWriter:
    """Collects lines of Python code and the globals that they use."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"C": CoroutineType, "pend": _add_pending}

    def add(self, depth: int, *lines: str) -> None:
        self.lines.extend("    " * depth + line for line in lines)

    def function(self, name: str) -> Any:
        exec(compile("\n".join(self.lines), f"<selection {name}>", "exec"), self.names)  # noqa: S102 - see module
        return self.names[name]


def _add_pending(pending: dict[Any, Any] | None, key: Any, value: Any) -> dict[Any, Any]:
    if pending is None:
        return {key: value}
    pending[key] = value
    return pending


# --- one object ------------------------------------------------------------------------------------------------------


def object_function(type_: GraphQLObjectType, fields: list[Any]) -> Run:
    """Returns the function that completes an object of ``type_``, field by field in order.

    A name from the document appears in the code only as the ``repr`` of a string.
    """
    module = _ModuleWriter()
    module.add(0, "def run(s, p, x):", "    w = None", "    try:", "        plain = type(s) is not dict")
    entries = []
    for number, field in enumerate(fields):
        if field.nodes[0].name.value == "__typename":
            entries.append(f"{field.key!r}: {type_.name!r}")
        else:
            _write_field(module, number, field)
            entries.append(f"{field.key!r}: v{number}")
    module.add(1, "except Exception:")
    module.add(2, "if w is not None:", "    x.settle_in_background([*w.values()])", "raise")
    module.add(1, f"r = {{{', '.join(entries)}}}", "return r if w is None else x.settle(r, w)")
    run: Run = module.function("run")
    return run


def _write_field(module: _ModuleWriter, number: int, field: PlannedField) -> None:
    v, f = f"v{number}", f"f{number}"
    module.names[f] = field
    path = f"(p, {field.key!r}, {field.parent.name!r})"
    module.add(2, "try:")
    info = _write_read(module, number, field, path)
    if field.direct is not None and field.direct.is_async:
        module.add(3, f"w = pend(w, {field.key!r}, {v} := x.later({f}, {path}, {v}{info}))")
        module.add(2, "except Exception as e:", f"    {v} = x.fail({f}, {path}, e)")
        return
    nullable_type, nullable = unwrapped(field.definition.type)
    complete = f"{v} = x.complete({f}, {path}, {v}{info})"
    note_pending = f"if type({v}) is C: w = pend(w, {field.key!r}, {v})"
    note_guarded = f"if type({v}) is C: w = pend(w, {field.key!r}, {v} := x.guard({f}, {path}, {v}))"
    leaf = leaf_of(nullable_type)
    item = unwrapped(nullable_type.of_type) if isinstance(nullable_type, GraphQLList) else None
    item_leaf = leaf_of(item[0]) if item else None
    if_not_null = f"elif {v} is not None:" if nullable else "else:"
    if leaf:
        module.names |= leaf.names
        test, value = leaf.test.format(v=v), leaf.value.format(v=v)
        if value == v:
            guard = f"{v} is not None and " if nullable else ""
            module.add(3, f"if {guard}not ({test}):")
        else:
            module.add(3, f"if {test}: {v} = {value}", if_not_null)
        module.add(4, complete, note_pending)
    elif item and item_leaf:
        module.names |= item_leaf.names
        module.add(3, f"if type({v}) is list and len(u := {_leaf_list(item_leaf, item[1], v)}) == len({v}): {v} = u")
        module.add(3, if_not_null)
        module.add(4, complete, note_pending)
    elif item and isinstance(item[0], GraphQLObjectType):
        module.add(3, f"if type({v}) is list:", f"    {v} = x.rows({f}, {path}, {v})", f"    {note_guarded}")
        module.add(3, if_not_null)
        module.add(4, complete, note_pending)
    elif isinstance(nullable_type, GraphQLObjectType):
        plain = f"t{number}"
        module.names[plain] = PlainClasses(nullable_type)
        module.add(3, f"if type({v}) in {plain} or {plain}.admits({v}):")
        module.add(4, f"{v} = {f}.run({v}, {path}, x)", note_guarded)
        module.add(3, if_not_null)
        module.add(4, complete, note_pending)
    else:
        module.add(3, f"if {v} is not None:" if nullable else "if True:")
        module.add(4, complete, note_pending)
    module.add(2, "except Exception as e:", f"    {v} = x.fail({f}, {path}, e)")


def _write_read(module: _ModuleWriter, number: int, field: PlannedField, path: str) -> str:
    """Writes how the field's value is read or resolved. Returns the code that passes on the resolve info, if any."""
    v, f, name = f"v{number}", f"f{number}", plain_member(field.definition)
    if name is not None:
        default = strawberry_field(field.definition).default_resolver
        if default is member:
            module.add(3, f"{v} = s.{name} if plain else s[{name!r}]")
        elif default is getattr:
            module.add(3, f"{v} = s.{name}")
        else:
            module.names[f"r{number}"] = default
            module.add(3, f"{v} = r{number}(s, {name!r})")
        return ""
    resolver, direct = f"r{number}", field.direct
    if direct is not None and field.keywords is not None and direct.info_name is None:
        module.add(3, f"{v} = {_direct_call(module, number, field)}")
        return ""
    module.add(3, f"i = x.info({f}, {path})")
    if direct is not None and field.keywords is not None:
        module.add(3, f"{v} = {_direct_call(module, number, field)}")
        return ", i"
    arguments = ""
    if field.arguments is None:
        arguments = f", **x.arguments({f})"
    elif field.arguments:
        module.names[f"a{number}"] = field.arguments
        arguments = f", **a{number}"
    module.names[resolver] = field.definition.resolve or default_field_resolver
    call = f"{resolver}(s, i{arguments})"
    if direct is not None:
        module.add(3, f"k{number} = x.keywords({f}, i)")
        call = f"{call} if k{number} is None else {_direct_call(module, number, field)}"
    module.add(3, f"{v} = {call}")
    return ", i"


def _direct_call(module: _ModuleWriter, number: int, field: PlannedField) -> str:
    direct = field.direct
    if direct is None:
        raise TypeError
    module.names[f"d{number}"] = direct.function
    arguments = ["s"] if direct.takes_self else []
    arguments += [f"{name}=s" for name in direct.source_names]
    if direct.info_name is not None:
        module.names |= {f"m{number}": direct.make_info, f"sf{number}": direct.field}
        arguments.append(f"{direct.info_name}=m{number}(_raw_info=i, _field=sf{number})")
    if field.keywords is None:
        arguments.append(f"**k{number}")
    elif field.keywords:
        module.names[f"k{number}"] = field.keywords
        arguments.append(f"**k{number}")
    return f"d{number}({', '.join(arguments)})"


# --- a list of plain rows --------------------------------------------------------------------------------------------


class _NotPlainError(Exception):
    """The selection or the rows need the object function."""


class RowsFunction(NamedTuple):
    """A comprehension over rows of one class. It completes the plain rows and leaves the others out."""

    run: Callable[..., list[Any]]
    """Takes the rows, and then the values of each of their columns."""
    complete: bool
    """Whether every list within the sample rows had an item. A list that had none is plain only while it is empty."""


def rows_function(field: PlannedField, rows: list[Any], columns: Mapping[Any, Sequence[Any]]) -> RowsFunction | None:
    """Returns the comprehension for rows like these, or None if their selection or class needs the object function.

    ``columns`` maps the fields that were resolved for all rows at once to their values for these rows. The
    comprehension reads only members that can be read twice without a side effect, because the caller starts again if a
    row was left out.
    """
    writer = _RowsWriter(columns)
    try:
        clauses, value = writer.object_of(
            cast("GraphQLObjectType", field.object_type), field.selected_fields(), "s", rows
        )
    except Exception:  # noqa: BLE001 - the object function meets the same error and reports it
        return None
    names = [name for name, _ in writer.columns.values()]
    loop = f"for s, {', '.join(names)} in zip(v, {', '.join(f'{name}s' for name in names)}, strict=True)"
    writer.module.add(
        0,
        f"def rows({', '.join(['v', *(f'{name}s' for name in names)])}):",
        f"    return [{value} {loop if names else 'for s in v'} {' '.join(clauses)}]",
    )
    return RowsFunction(writer.module.function("rows"), writer.complete)


class _RowsWriter:
    """Writes a comprehension. It learns the classes of rows, and of objects within them, from sample rows."""

    def __init__(self, columns: Mapping[Any, Sequence[Any]]) -> None:
        self.columns = {field: (f"c{number}", values) for number, (field, values) in enumerate(columns.items())}
        self.module = _ModuleWriter()
        self.complete = True
        self._count = 0

    def _name(self, value: Any = None) -> str:
        self._count += 1
        name = f"n{self._count}"
        if value is not None:
            self.module.names[name] = value
        return name

    def object_of(
        self, type_: GraphQLObjectType, fields: list[Any], s: str, samples: Sequence[Any]
    ) -> tuple[list[str], str]:
        """Returns the clauses that read the object in the variable ``s``, and the expression of its result."""
        class_ = type(samples[0]) if samples else None
        if class_ is None or not PlainClasses(type_).admits(samples[0]):
            raise _NotPlainError
        clauses = [f"if type({s}) is {self._name(class_)}"]
        reads: dict[str, str] = {}
        wrapped = {field: list_ for field in fields if (list_ := _wrapped_list_of(class_, field, samples)) is not None}
        for field in fields:
            name = wrapped[field].of if field in wrapped else plain_member(field.definition)
            if name is not None and name not in reads:
                reads[name] = self._name()
        clauses += self._read_clauses(class_, fields, s, reads)
        entries = []
        for field in fields:
            if field.nodes[0].name.value == "__typename":
                entries.append(f"{field.key!r}: {type_.name!r}")
                continue
            name = plain_member(field.definition)
            if field in self.columns:
                field_clauses, value = self._value(field, *self.columns[field])
            elif field in wrapped:
                name = wrapped[field].of
                values = [member(sample, name) for sample in samples if type(sample) is class_]
                field_clauses, value = self._wrapped_list(field, reads[name], values)
            elif name is None:
                field_clauses, value = self._derived(field, s, samples)
            else:
                values = [member(sample, name) for sample in samples if type(sample) is class_]
                field_clauses, value = self._value(field, reads[name], values)
            clauses += field_clauses
            entries.append(f"{field.key!r}: {value}")
        return clauses, f"{{{', '.join(entries)}}}"

    def _wrapped_list(self, field: Any, v: str, samples: Sequence[Any]) -> tuple[list[str], str]:
        """Returns the code for a list of wrappers, which reads the list of their items instead."""
        items = [item for sample in samples if type(sample) is list for item in sample]
        s = self._name()
        clauses, entries = [], []
        for selected in field.selected_fields():
            field_clauses, value = self._value(selected, s, items)
            clauses += field_clauses
            entries.append(f"{selected.key!r}: {value}")
        inner = f"[{{{', '.join(entries)}}} for {s} in {v} {' '.join(clauses)}]"
        return self._all_plain(v, inner)

    def _all_plain(self, v: str, inner: str) -> tuple[list[str], str]:
        """Returns the code that completes the list ``v`` by the comprehension ``inner`` if that leaves no item out."""
        out = self._name()
        return [f"if type({v}) is list for {out} in ({inner},) if len({out}) == len({v})"], out

    def _derived(self, field: PlannedField, s: str, samples: Sequence[Any]) -> tuple[list[str], str]:
        direct = field.direct
        if direct is None or not direct.is_derived or direct.is_async or direct.info_name or field.keywords != {}:
            raise _NotPlainError
        function: Callable[..., Any] = direct.function
        if not direct.takes_self or direct.source_names:
            raise _NotPlainError
        local = self._name()
        clauses, value = self._value(field, local, [function(sample) for sample in samples])
        return [f"for {local} in ({self._name(function)}({s}),)", *clauses], value

    def _read_clauses(self, class_: type, fields: list[Any], s: str, reads: dict[str, str]) -> Iterator[str]:
        resolvers = {strawberry_field(f.definition).default_resolver for f in fields if plain_member(f.definition)}
        if not resolvers <= {member, getattr} or (class_ is dict and getattr in resolvers):
            raise _NotPlainError
        if class_ is dict:
            yield from (f"for {local} in ({s}[{name!r}],)" for name, local in reads.items())
            return
        if not all(readable_twice(class_, name) for name in reads):
            raise _NotPlainError
        columns: tuple[str, ...] = getattr(class_, "_fields", ())
        unpackable = issubclass(class_, tuple) and class_.__iter__ is tuple.__iter__ and set(reads) <= set(columns)
        if unpackable and len(columns) <= MAX_UNPACKED * len(reads):
            targets = "".join(f"{reads.get(column, '_')}, " for column in columns)
            yield f"for ({targets}) in ({s},)"
        else:
            yield from (f"for {local} in ({s}.{name},)" for name, local in reads.items())

    def _value(self, field: Any, v: str, samples: Sequence[Any]) -> tuple[list[str], str]:
        nullable_type, nullable = unwrapped(field.definition.type)
        leaf = leaf_of(nullable_type)
        if leaf:
            self.module.names |= leaf.names
            test, value = leaf.test.format(v=v), leaf.value.format(v=v)
            if not nullable:
                return [f"if {test}"], value
            return [f"if {v} is None or {test}"], value if value == v else f"None if {v} is None else {value}"
        if isinstance(nullable_type, GraphQLObjectType) and not nullable:
            return self.object_of(nullable_type, field.selected_fields(), v, samples)
        if isinstance(nullable_type, GraphQLList) and not nullable:
            return self._list(field, nullable_type, v, samples)
        raise _NotPlainError

    def _list(self, field: Any, type_: Any, v: str, samples: Sequence[Any]) -> tuple[list[str], str]:
        item_type, nullable = unwrapped(type_.of_type)
        leaf = leaf_of(item_type)
        if leaf:
            self.module.names |= leaf.names
            inner = _leaf_list(leaf, nullable, v)
        elif isinstance(item_type, GraphQLObjectType):
            items = [item for sample in samples if type(sample) is list for item in sample]
            if not items:
                self.complete = False
                return [f"if type({v}) is list if not {v}"], "[]"
            s = self._name()
            clauses, value = self.object_of(item_type, field.selected_fields(), s, items)
            inner = f"[{value} for {s} in {v} {' '.join(clauses)}]"
        else:
            raise _NotPlainError
        return self._all_plain(v, inner)


def _wrapped_list_of(class_: type, field: Any, samples: Sequence[Any]) -> WrappedList | None:
    """Returns the attribute that makes a list's wrappers, if they are plain and only their item is selected."""
    name = plain_member(field.definition)
    attribute = None if name is None else inspect.getattr_static(class_, name, None)
    nullable_type, nullable = unwrapped(field.definition.type)
    if not isinstance(attribute, WrappedList) or nullable or not isinstance(nullable_type, GraphQLList):
        return None
    wrapper_type, _ = unwrapped(nullable_type.of_type)
    wrapper = next(
        (items[0] for sample in samples if type(sample) is class_ and (items := attribute.func(sample))), None
    )
    if wrapper is None or not isinstance(wrapper_type, GraphQLObjectType):
        return None
    if not PlainClasses(wrapper_type).admits(wrapper) or not readable_twice(type(wrapper), attribute.inner):
        return None
    selected = {plain_member(selected.definition) for selected in field.selected_fields()}
    return attribute if selected == {attribute.inner} else None


def _leaf_list(leaf: Leaf, nullable: bool, v: str) -> str:
    """Returns a comprehension over the list ``v`` that leaves out values that are not plain."""
    test, value = leaf.test.format(v="i"), leaf.value.format(v="i")
    if nullable:
        value = value if value == "i" else f"(None if i is None else {value})"
        test = f"i is None or {test}"
    return f"[{value} for i in {v} if {test}]"
