"""What a store holds of one partition, from its objects' bytes alone: the chain of commits, segments, open rows."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from crc32c import crc32c

from tests.chaos.audit.judging import Episode, Name
from tests.chaos.audit.values import Items, Lists, content_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_COMMIT = re.compile(r"commits/(\d{5,})/(?:\d{9,}/)?(\d{12,})\.json")
_FULL_EVERY = 50
_KINDS = ("segments", "open")
_MODULUS = 1 << 64
_NOT_VALUES = {"chunk_first_step", "policy_version", "policy_digest", "exploration"}
_MOST_PRODUCERS = 64
_RANGES = ("closed_offset", "closed_ms", "length", "return", "policy_version")


@dataclass
class Stored:
    """One partition of a store: its commits, and the segments that live at the newest, by name."""

    commits: list[dict[str, Any]] = field(default_factory=list)
    segments: dict[str, dict[str, Any]] = field(default_factory=dict)
    open: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def high_water(self) -> int:
        return int(self.commits[-1]["high_water"]) if self.commits else 0

    @property
    def retired(self) -> dict[str, int]:
        return dict(self.commits[-1]["retired"]) if self.commits else {"episodes": 0, "steps": 0, "keys": 0}


def partitions_in(objects: Mapping[str, bytes]) -> set[int]:
    """The partitions that have commits."""
    return {int(found[1]) for found in map(_COMMIT.fullmatch, objects) if found}


def follow(objects: Mapping[str, bytes], partition: int, tell: Callable[[str, str], None]) -> Stored:
    """Follow a partition's commits from the first to the last; `tell` takes what is wrong with them."""
    named = {}
    for name in objects:
        found = _COMMIT.fullmatch(name)
        if found and int(found[1]) == partition:
            named[int(found[2])] = name
    stored = Stored()
    for number in range(len(named)):
        if number not in named:
            tell("chain", f"there are {len(named)} commits, up to {max(named)}, and none with the number {number}")
            break
        try:
            commit = json.loads(objects[named[number]])
        except ValueError as error:
            tell("chain", f"commit {number} does not read: {error}")
            break
        _apply(stored, commit, number, partition, tell)
        stored.commits.append(commit)
    return stored


def _apply(
    stored: Stored, commit: dict[str, Any], number: int, partition: int, tell: Callable[[str, str], None]
) -> None:
    if (commit["number"], commit["partition"]) != (number, partition):
        tell("chain", f"commit {number} says that it is {commit['partition']}/{commit['number']}")
    if commit["high_water"] < stored.high_water:
        tell("chain", f"commit {number} goes back from {stored.high_water} to {commit['high_water']}")
    for kind in _KINDS:
        live: dict[str, dict[str, Any]] = getattr(stored, kind)
        tells = [f"removes {name}, which does not live" for name in commit[f"{kind}_removed"] if name not in live]
        for name in commit[f"{kind}_removed"]:
            live.pop(name, None)
        for entry in commit[f"{kind}_added"]:
            name = entry["name"]
            if name in live or number_of(name) != number:
                tells.append(f"adds {name}, which lives already or was written for another commit")
            live[name] = entry
        if number % _FULL_EVERY == 0 and sorted(entry["name"] for entry in commit["live"][kind]) != sorted(live):
            tells.append(f"lists other {kind} than live")
        for told in tells:
            tell("chain", f"commit {number} {told}")


def number_of(segment: str) -> int:
    """The number of the commit that a segment was written for."""
    return int(segment.rpartition("/")[2].partition("-")[0])


class Segment:
    """One segment's rows."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._lists = {
            field.name: Lists(column)
            for field, column in zip(batch.schema, batch.columns, strict=True)
            if pa.types.is_list(field.type) and field.name not in _NOT_VALUES
        }
        names = [name for name in batch.schema.names if name not in self._lists]
        self._plain = {name: batch.column(name).to_pylist() for name in names}
        self.rows = batch.num_rows

    def facts(self, row: int) -> dict[str, Any]:
        return {name: column[row] for name, column in self._plain.items()}

    def items(self, row: int) -> dict[str, Items]:
        return {name: column[row] for name, column in self._lists.items()}

    def episode(self, row: int) -> Episode:
        return Episode(self.facts(row), {name: content_hash(items) for name, items in self.items(row).items()})


def load(objects: Mapping[str, bytes], entry: Mapping[str, Any], tell: Callable[[str, str], None]) -> Segment | None:
    """Read a segment that a commit names, and hold it against what the commit says of it."""
    name = entry["name"]
    data = objects.get(name)
    if data is None:
        tell("gone", f"segment {name} is named by a commit, lives, and is not there")
        return None
    if (len(data), crc32c(data)) != (entry["bytes"], entry["crc32c"]):
        tell("altered", f"segment {name} has other bytes than its commit names")
    try:
        with pa.ipc.open_file(pa.BufferReader(data)) as reader:
            table = reader.read_all().combine_chunks()
    except (pa.ArrowException, OSError) as error:
        tell("altered", f"segment {name} does not read: {error}")
        return None
    segment = Segment(table.to_batches()[0]) if table.num_rows else None
    if table.num_rows != entry["rows"]:
        tell("altered", f"segment {name} has {table.num_rows} rows, its commit names {entry['rows']}")
    return segment


def check_entry(entry: Mapping[str, Any], episodes: list[Episode], tell: Callable[[str, str], None]) -> None:
    """Hold what a commit says of a segment's episodes against them."""
    name = entry["name"]
    if (steps := sum(episode.facts["length"] for episode in episodes)) != entry["steps"]:
        tell("altered", f"segment {name} has {steps} steps, its commit names {entry['steps']}")
    if (keys := key_sum(episodes)) != entry["keys"]:
        tell("altered", f"segment {name} has the key sum {keys}, its commit names {entry['keys']}")
    for column in _RANGES if entry["ranges"] and episodes else ():
        values = [episode.facts[column] for episode in episodes]
        found = _span(_acting(episodes) if column == "policy_version" else values)
        # In JSON the name has an underscore, since `return` can be no attribute.
        named = entry["ranges"]["return_" if column == "return" else column]
        # Where no return is a number, both are NaN, which equals nothing.
        if named != found and (found or not all(map(isnan, named))):
            tell("altered", f"segment {name}: {column} lies in {found}, its commit names {named}")
    if entry["ranges"] and episodes:
        producers = sorted({episode.facts["producer"] for episode in episodes})
        facts = {
            "ends": sorted({episode.facts["ends"] for episode in episodes}),
            "producers": producers if len(producers) <= _MOST_PRODUCERS else None,
            "metrics": _measured(episodes),
        }
        for what, told in facts.items():
            if entry["ranges"][what] != told:
                tell("altered", f"segment {name}: {what} are {told}, its commit names {entry['ranges'][what]}")


def _acting(episodes: list[Episode]) -> list[int]:
    """The versions of the chunks that have a step, of which an episode has one at least."""
    return [
        version
        for facts in (episode.facts for episode in episodes)
        for first_step, version in zip(facts["chunk_first_step"], facts["policy_version"], strict=True)
        if first_step < facts["length"]
    ]


def _measured(episodes: list[Episode]) -> dict[str, list[float]]:
    """The least and the largest number of each metric that has one."""
    names = [fact for fact in episodes[0].facts if fact.startswith("metric.")]
    spans = {fact: _span([episode.facts[fact] for episode in episodes]) for fact in names}
    return {fact.removeprefix("metric."): span for fact, span in spans.items() if span}


def _span(values: list[Any]) -> list[Any]:
    """The least and the largest of the values that are numbers; nothing where none is."""
    numbers = [value for value in values if value is not None and not isnan(value)]
    return [min(numbers), max(numbers)] if numbers else []


def key_sum(episodes: list[Episode]) -> int:
    """The sum of the hashes of episodes' names and lengths, as docs/formats.md has it: by splitmix64's finisher."""
    return sum(_key(episode.name, episode.facts["length"]) for episode in episodes) % _MODULUS


def _key(name: Name, length: int) -> int:
    mixed = int.from_bytes(hashlib.blake2b(name.producer.encode(), digest_size=8).digest(), "little")
    for part in (*name[1:], length):
        mixed = ((mixed ^ part) + 0x9E3779B97F4A7C15) % _MODULUS
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % _MODULUS
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % _MODULUS
        mixed ^= mixed >> 31
    return mixed
