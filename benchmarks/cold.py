"""How fast a store of images is read that is four times as large as what the reader may keep in memory.

No privilege is needed to bound memory so: the reader is a process of its own, in which all memory but mapped files is
limited to a quarter of the store (`RLIMIT_DATA`); and the kernel's cache of the store is emptied before each round,
which reads an eighth of it. So a round finds less in memory than a reader would that goes on for ever.
What is emptied is this machine's cache; that of the host of a virtual machine is not.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.figure import Figure
from benchmarks.stored import episodes
from penstock_consumers.replay import Prioritized, Replay
from penstock_consumers.store import commits, layout, manifest, segments
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.commits import Commit, Limits, Live
from penstock_schemas.spaces import Box, Discrete
from penstock_schemas.stream import StreamSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SPEC = StreamSpec(
    stream="frames",
    observation=Box((84, 84, 4), np.dtype(np.uint8)),
    action=Discrete(6),
    reward_dtype=np.dtype(np.float32),
    env={"id": "Frames-v0"},
)
_FRAME = 84 * 84 * 4
_SEGMENTS = 8
_SEGMENT_STEPS = 4_800
_SHARE = 4
_ROUNDS = 2
_LENGTH = 32

# The limit counts address space too, of which Arrow's own allocator reserves a gigabyte, and numpy's linear algebra
# some for each core.
_FRUGAL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"}


class _View(NamedTuple):
    """What is read, and how many bytes of images lie together for one item of it."""

    items: int
    item_bytes: int
    draw: Callable[[Replay], Iterator[int]]
    """Draws batches, and says how many items each has."""


def _uniform(replay: Replay) -> Iterator[int]:
    return (256 for _ in replay.transitions(256))


def _prioritized(replay: Replay) -> Iterator[int]:
    choose, rng = Prioritized(), np.random.default_rng(0)
    for batch in replay.transitions(256, choose=choose):
        choose.update(batch["index"], rng.random(256))
        yield 256


def _sequences(replay: Replay) -> Iterator[int]:
    return (16 for _ in replay.sequences(16, _LENGTH))


_VIEWS = {
    "uniform transitions, batches of 256": _View(1, 2 * _FRAME, _uniform),
    "prioritized transitions, batches of 256, with updates": _View(1, 2 * _FRAME, _prioritized),
    f"sequences, 16 x {_LENGTH}": _View(_LENGTH, (_LENGTH + 1) * _FRAME, _sequences),
}


def frames(folder: Path) -> Iterator[Figure]:
    """Read images at random from a store that is cold, in turn with the disk alone; reported, without an aim."""
    _write(folder)
    for name in _VIEWS:
        command = [sys.executable, "-m", "benchmarks.cold", str(folder), name]
        environment = {**os.environ, **_FRUGAL}
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)  # noqa: S603  (our own)
        told = json.loads(done.stdout)
        yield Figure(
            f"cold 84x84x4 frames, {name} (reference: reading as many bytes together at random from the disk)",
            told["rate"],
            f"MB/s ({told['steps']:,} steps/s; {told['read']:.2f} bytes read from the disk for one given)",
            told["disk"],
            told["ratio"],
            "reported",
            holds=True,
        )


def _write(folder: Path) -> None:
    bucket = open_bucket(folder)
    manifest.establish(bucket, manifest.Manifest(_SPEC, "topic", "cluster"))
    live = Live()
    for number in range(_SEGMENTS):
        batch = episodes(_SPEC, _SEGMENT_STEPS, number)
        entry = segments.write_episodes(bucket, layout.segment(0, number), batch)
        commit = Commit(
            partition=0,
            number=number,
            writer="bench",
            high_water=commits.ranges_of(entry).closed_offset[1] + 1,
            topic_id="topic",
            cluster_id="cluster",
            last=None,
            log_clock_ms=0,
            producers={},
            counters={},
            limits=Limits(),
            segments_added=(entry,),
        )
        live = live.after(commit)
        commits.create(bucket, commit, live)


def _measure(folder: Path, view: _View) -> dict[str, Any]:
    """Measure in this process, whose memory is limited from now on."""
    files = sorted(folder.glob("segments/**/*.arrow"))
    size = sum(file.stat().st_size for file in files)
    resource.setrlimit(resource.RLIMIT_DATA, (size // _SHARE, size // _SHARE))
    count = size // _SHARE // 2 // view.item_bytes
    rounds = [(_ours(folder, files, view, count), _disk(files, view.item_bytes, count)) for _ in range(_ROUNDS)]
    rates, read = zip(*(ours for ours, _ in rounds), strict=True)
    rate = statistics.median(rates)
    return {
        "rate": round(rate * view.item_bytes / 1e6),
        "steps": round(rate * view.items),
        "disk": round(statistics.median(disk for _, disk in rounds) * view.item_bytes / 1e6),
        "ratio": round(statistics.median(ours[0] / disk for ours, disk in rounds), 3),
        "read": statistics.median(read) / view.item_bytes,
    }


def _ours(folder: Path, files: list[Path], view: _View, count: int) -> tuple[float, float]:
    """Items a second, and the bytes that the disk was asked for an item."""
    _evict(files)
    batches = view.draw(Replay.open(folder))
    before, started, given = _read_bytes(), time.perf_counter(), 0
    while given < count:
        given += next(batches)
    return given / (time.perf_counter() - started), (_read_bytes() - before) / given


def _disk(files: list[Path], item_bytes: int, count: int) -> float:
    """Reads a second, one after the other."""
    _evict(files)
    rng = np.random.default_rng(0)
    descriptors = [os.open(file, os.O_RDONLY) for file in files]
    for descriptor in descriptors:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    sizes = [os.fstat(descriptor).st_size for descriptor in descriptors]
    started = time.perf_counter()
    for at in rng.integers(len(files), size=count).tolist():
        os.pread(descriptors[at], item_bytes, int(rng.integers(sizes[at] - item_bytes)))
    rate = count / (time.perf_counter() - started)
    for descriptor in descriptors:
        os.close(descriptor)
    return rate


def _evict(files: list[Path]) -> None:
    """Empty the kernel's cache of files that nobody maps."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _read_bytes() -> int:
    """What this process made the disk read."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


if __name__ == "__main__":
    print(json.dumps(_measure(Path(sys.argv[1]), _VIEWS[sys.argv[2]])))
