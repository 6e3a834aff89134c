"""Prints the lists and records that the operator's commands fetch: tables for people, JSON for scripts."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent.terminal import cell, note, print_json, print_record
from cli.operator.session import Session

Columns = Sequence[tuple[str, str]]
"""The columns of a table: pairs of heading and member."""


def show_list(
    session: Session,
    method: str,
    body: Mapping[str, Any],
    columns: Columns,
    first: int,
    after: str | None,
    *,
    every: bool,
    as_json: bool,
) -> None:
    """Fetches and prints one page of a list, or every page.

    With every page, the JSON has ``nextCursor: null``, and a terminal shows how many items have arrived.
    """
    if every:
        items: list[dict[str, Any]] = []
        for item in session.pages(method, body):
            items.append(item)
            if sys.stderr.isatty() and len(items) % 200 == 0:
                sys.stderr.write(f"\r{len(items)} so far")
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
        page: dict[str, Any] = {"items": items, "nextCursor": None}
    else:
        page = session.page(method, body, first=first, after=after)
    if as_json:
        print_json(page)
        return
    _print_table(columns, [_row(item) for item in page["items"]])
    if page.get("nextCursor") is not None:
        note(f"There is more: --after {page['nextCursor']}, or --all.", "dim")


def show(record: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints one record."""
    print_json(record) if as_json else print_record(record)


def _print_table(columns: Columns, rows: Iterable[Mapping[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, (heading, _) in enumerate(columns):
        table.add_column(heading, overflow="fold", no_wrap=position == 0)
    for row in rows:
        table.add_row(*(Text(cell(row.get(member))) for _, member in columns))
    Console(highlight=False, width=None if sys.stdout.isatty() else 240).print(table)


def _row(item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an item as a row of a table: uses read "1/4", and times have whole seconds."""
    row = {member: _short(value) for member, value in item.items()}
    if "maxUses" in row:
        row["used"] = f"{row.get('uses')}/{row['maxUses']}"
    return row


def _short(value: Any) -> Any:
    """Returns a time of the API with whole seconds, and any other value as it is."""
    if not isinstance(value, str) or not value.endswith("Z"):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return value
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"
