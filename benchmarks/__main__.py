"""``make bench`` compares the requests per second of this server with those of its peers, in pairs run in turn.

An absolute time means nothing on a shared machine. Each figure is therefore the median of the ratios of pairs
(A B A B). Figures over ``hash`` and ``idle`` are costs, so less is better. The answers of a pair are compared before
anything is timed.

A figure whose peer is not installed is "not run", and so is one that fails. Exits with 1 if one fails.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.faults import BenchmarkError, NotInstalledError, failed_request, require_wrk, told_in_one_line
from benchmarks.figures import enrolment_over_hash, mint_over_hash, p99_beside_mints, pairs, ratio
from benchmarks.load import CONNECTIONS
from benchmarks.stage import HERE, Stage, staged

Outcome = list[float] | BenchmarkError
"""The ratios of a figure, or the reason why it was not run."""

RESULTS = HERE / "results.json"
LOG_WIDTH = 120
"""Columns of the table if it does not go to a terminal."""


def measurements(stage: Stage, options: argparse.Namespace, folder: Path) -> dict[str, Callable[[], list[float]]]:
    """Returns, for each figure by its name, the function that measures it."""
    rounds, seconds = options.rounds, options.seconds
    return {
        **{pair.name: partial(ratio, pair, options.connections, rounds, seconds, folder) for pair in pairs(stage)},
        "mint/hash": partial(mint_over_hash, stage, rounds, seconds, folder),
        "enroll/hash": partial(enrolment_over_hash, stage, rounds),
        "p99_beside_mints/idle": partial(p99_beside_mints, stage, rounds, seconds, folder),
    }


def outcome(measure: Callable[[], list[float]]) -> Outcome:
    """Returns the ratios, or the error that stopped the measurement."""
    try:
        return measure()
    except BenchmarkError as error:
        return error
    except httpx.HTTPError as error:
        return failed_request(error)


def rows(outcomes: dict[str, Outcome]) -> list[tuple[str, ...]]:
    """Returns the rows of the table: name, median, least and most, or the name and why the figure was not run."""
    return [
        (name, f"not run: {values.reason}")
        if isinstance(values, BenchmarkError)
        else (name, *(f"{value:.2f}" for value in (statistics.median(values), min(values), max(values))))
        for name, values in outcomes.items()
    ]


def results(outcomes: dict[str, Outcome]) -> dict[str, dict[str, Any]]:
    """Returns what the file holds: the medians, and the reasons of the figures that were not run."""
    return {
        "ratios": {
            name: round(statistics.median(values), 3)
            for name, values in outcomes.items()
            if not isinstance(values, BenchmarkError)
        },
        "not_run": {name: values.reason for name, values in outcomes.items() if isinstance(values, BenchmarkError)},
    }


def failed(outcomes: dict[str, Outcome]) -> bool:
    """Returns whether a figure was not run for another reason than a peer that is not installed."""
    return any(
        isinstance(values, BenchmarkError) and not isinstance(values, NotInstalledError) for values in outcomes.values()
    )


def run(options: argparse.Namespace) -> dict[str, Outcome]:
    """Measures the figures that are asked for. Says on stderr what cannot be run, as soon as it shows."""
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="bc-bench-") as name, staged(Path(name)) as stage:
        for error in stage.errors:
            print(f"{error}: its figures are not run", file=sys.stderr)
        for figure, measure in measurements(stage, options, Path(name)).items():
            if options.only in figure:
                outcomes[figure] = values = outcome(measure)
                if isinstance(values, BenchmarkError) and values not in stage.errors:
                    print(f"{figure} is not run: {values}", file=sys.stderr)
    return outcomes


def main() -> None:
    """Measures every figure, prints the table and writes the file. Exits with 1 if a figure failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs a figure")
    parser.add_argument("--seconds", type=int, default=3, help="length of a run")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="how many send at once")
    parser.add_argument("--only", default="", help="figures whose name contains this")
    options = parser.parse_args()
    with told_in_one_line():
        require_wrk()
        RESULTS.unlink(
            missing_ok=True
        )  # if this run is stopped, the figures of an earlier one must not pass for its own
        outcomes = run(options)
    table = Table("figure", "median", "least", "most", title="this server over its peer, requests per second")
    for row in rows(outcomes):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else LOG_WIDTH).print(table)
    RESULTS.write_text(json.dumps(results(outcomes), indent=1) + "\n")
    sys.exit(failed(outcomes))


if __name__ == "__main__":
    main()
