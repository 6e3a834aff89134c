"""The output of commands, for people and scripts: answers on standard output, everything else on standard error."""

import functools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ParamSpec, Self

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agent.errors import CommandError, RefusedError
from agent.state import Status

P = ParamSpec("P")

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Wraps a command: its CommandError becomes a message on standard error and the documented exit code."""

    @functools.wraps(command)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except CommandError as failure:
            lines = failure.lines() if isinstance(failure, RefusedError) else [failure.message]
            for line in lines:
                note(line, "bold red" if line is lines[0] else "red")
            raise typer.Exit(int(failure.exit_code)) from None

    return reporting


def note(text: str, style: str = "") -> None:
    """Prints a line for people on standard error.

    Control characters in a server's text cannot steer the terminal.
    """
    Console(stderr=True, highlight=False).print(Text(clean(text), style=style), soft_wrap=True)


def print_json(value: Any) -> None:
    """Prints ``value`` as JSON on standard output, for scripts."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_table(columns: Sequence[tuple[str, str]], rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints ``rows`` as a table on standard output. ``columns`` are pairs of heading and member."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, (heading, _) in enumerate(columns):
        table.add_column(heading, overflow="fold", no_wrap=position == 0)
    for row in rows:
        table.add_row(*(Text(cell(row.get(member))) for _, member in columns))
    Console(highlight=False, width=None if sys.stdout.isatty() else 240).print(table)


def print_record(record: Mapping[str, Any]) -> None:
    """Prints one record, with a line for each member."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for member, value in record.items():
        table.add_row(member, Text(cell(value)))
    Console(highlight=False, width=None if sys.stdout.isatty() else 240).print(table)


def cell(value: Any) -> str:
    """Returns ``value`` as the text of a table's cell. Absent values become a dash, and labels read ``key=value``."""
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(cell(item) for item in value)
    if isinstance(value, dict):
        if value.keys() == {"key", "value"}:
            return clean(f"{value['key']}={value['value']}")
        return ", ".join(f"{name}: {cell(item)}" for name, item in value.items())
    return clean(str(value))


def clean(text: str) -> str:
    """Returns ``text`` with control characters made visible."""
    return text.translate(_CONTROLS)


class RunLog:
    """Writes the output of ``bcd site run`` to standard output: lines for people, or one JSON object a line.

    On a terminal the last line shows the current state. Use it as a context manager.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(highlight=False, soft_wrap=True)
        live = not as_json and self._console.is_terminal
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if live else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: Status) -> None:
        """Shows the current state, if the output is a terminal."""
        if self._live is None:
            return
        line = Text(status.phase, style="bold green" if status.epoch is not None else "bold yellow")
        facts = {
            "epoch": status.epoch,
            "holder": status.holder_agent_id,
            "until": status.expires_at and f"{status.expires_at:%H:%M:%S}Z",
            "problem": status.last_error,
        }
        for name, value in facts.items():
            if value is not None:
                line.append(f"  {name} ", style="dim").append(clean(str(value)))
        self._live.update(line, refresh=True)

    def __call__(self, event: str, **facts: object) -> None:
        """Writes one event with its facts and the time by this host's clock."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if self._as_json:
            sys.stdout.write(json.dumps({"time": at, "event": event, **facts}) + "\n")
            sys.stdout.flush()
            return
        line = Text(at, style="dim").append(f"  {event}", style=_STYLES.get(event, "bold"))
        for name, value in facts.items():
            line.append(f"  {name}=", style="dim").append(clean(str(value)))
        self._console.print(line)
        self._console.file.flush()


_STYLES = {
    "lease acquired": "bold green",
    "lease lost": "bold red",
    "no lease answer": "yellow",
    "this host's clock is off": "bold yellow",
    "hook failed": "red",
    "hook timed out": "red",
}
