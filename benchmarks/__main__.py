"""``make bench`` compares the requests per second of this server with those of its peers, in pairs run in turn.

An absolute time means nothing on a shared machine. Each figure is therefore the median of the ratios of pairs
(A B A B). Figures over ``hash`` and ``idle`` are costs, so less is better. The answers of a pair are compared before
anything is timed.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figures import compare, enrolment_over_hash, mint_over_hash, p99_beside_mints, pairs, ratio
from benchmarks.load import CONNECTIONS
from benchmarks.stage import HERE, staged


def main() -> None:
    """Measures every figure, prints the table and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs a figure")
    parser.add_argument("--seconds", type=int, default=3, help="length of a run")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="how many send at once")
    parser.add_argument("--only", default="", help="figures whose name contains this")
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="bc-bench-") as name, staged(Path(name)) as stage:
        for pair in pairs(stage):
            if options.only in pair.name:
                compare(pair)
                ratios[pair.name] = ratio(pair, options.connections, options.rounds, options.seconds, Path(name))
        if options.only in "mint/hash":
            ratios["mint/hash"] = mint_over_hash(stage, options.rounds, options.seconds, Path(name))
        if options.only in "enroll/hash":
            ratios["enroll/hash"] = enrolment_over_hash(stage, options.rounds)
        if options.only in "p99_beside_mints/idle":
            ratios["p99_beside_mints/idle"] = p99_beside_mints(stage, options.rounds, options.seconds, Path(name))
    table = Table("figure", "median", "least", "most", title="this server over its peer, requests per second")
    for figure, values in ratios.items():
        table.add_row(figure, *(f"{value:.2f}" for value in (statistics.median(values), min(values), max(values))))
    Console().print(table)
    medians = {figure: round(statistics.median(values), 3) for figure, values in ratios.items()}
    (HERE / "results.json").write_text(json.dumps({"ratios": medians}, indent=1) + "\n")


if __name__ == "__main__":
    main()
