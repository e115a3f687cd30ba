"""`make bench`: every figure, printed and written to build/bench.json; exit 1 where one does not hold."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks import choosing, cold, consumer, filters, loader, opening, policies, producer, sequences, transitions
from benchmarks.figure import Figure, pin
from benchmarks.stored import cartpole_store
from deploy.local.kafka import LocalKafka
from penstock_producers.service import use_one_thread
from penstock_schemas.log.kafka import KafkaLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_RESULTS = Path("build/bench.json")


def measure() -> Iterator[Figure]:
    """Measure every figure on the first core; the broker has the others."""
    use_one_thread()
    with LocalKafka() as broker, tempfile.TemporaryDirectory(dir=_RESULTS.parent) as folder:
        pin(broker.pid, first=False)
        pin(0, first=True)
        yield from producer.vector_entry_point()
        yield from producer.in_lanes()
        yield from policies.recurrent()
        yield from policies.convolutional()
        yield from producer.frames()
        yield from producer.out_of_lockstep()
        with KafkaLog(broker.bootstrap_servers) as log:
            yield from producer.to_kafka(log)
        yield from consumer.from_kafka(broker.bootstrap_servers, Path(folder))
    with tempfile.TemporaryDirectory(dir=_RESULTS.parent) as folder:
        yield from _learner(Path(folder))


def _learner(folder: Path) -> Iterator[Figure]:
    """Measure what a learner reads with; no broker takes the other cores."""
    yield from opening.opening(folder / "opening")
    store = cartpole_store(folder / "cartpole")
    yield from transitions.uniform(store)
    yield from sequences.padded(store)
    yield from choosing.prioritized(store)
    yield from filters.one_in_a_hundred(store)
    yield from loader.never_waits(store)
    yield from cold.frames(folder / "frames")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__).parse_args(argv)
    console = Console()
    _RESULTS.parent.mkdir(exist_ok=True)
    figures: list[Figure] = []
    for figure in measure():
        figures.append(figure)
        verdict = "holds" if figure.holds else "DOES NOT HOLD"
        console.print(f"{figure.name}: {figure.value:,} {figure.unit}, {figure.ratio:.2f} x reference: {verdict}")
    _RESULTS.write_text(json.dumps([figure.to_json() for figure in figures], indent=2) + "\n")
    table = Table("figure", "value", "unit", "reference", "ratio", "target", "holds")
    for figure in figures:
        row = (f"{figure.value:,}", figure.unit, f"{figure.reference:,}", f"{figure.ratio:.3f}", figure.target)
        table.add_row(figure.name, *row, "yes" if figure.holds else "NO")
    console.print(table)
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
