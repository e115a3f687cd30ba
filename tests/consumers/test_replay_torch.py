from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import math
import multiprocessing
import re
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from penstock_consumers.replay import Mixture, Replay, Uniform, Where
from penstock_consumers.replay.torch import Prefetch, ReplayDataset, ReplayLoader, tensors, to_device
from penstock_consumers.replay.torch.dataset import _Refreshing
from penstock_consumers.replay.torch.loader import _bytes
from penstock_consumers.replay.torch.share import Share
from penstock_consumers.replay.torch.shipped import Shipped
from penstock_consumers.replay.torch.tensors import mapped
from penstock_consumers.store import snapshots
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store.cache import Cache
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import CorruptStoreError, SettingsError, StoreError, StoreUnavailableError
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import encode_begin, encode_chunks
from tests.consumers.messages import NESTED, TOPIC, Clock, append, store_all
from tests.consumers.stores import Writer, episodes, stream
from tests.schemas.batches import make_batch, make_rows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from multiprocessing.connection import Connection
    from pathlib import Path

ENDS = (Ends.TERMINATED, Ends.TRUNCATED, Ends.TERMINATED | Ends.TRUNCATED, Ends.ABORTED, Ends.CUT)
LENGTHS = ([1, 2, 5, 9, 4], [8, 1, 1, 30, 7], [12, 3, 4, 6, 7], [40])
STEPS = sum(map(sum, LENGTHS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Episodes whose first observation is their number, in three partitions and segments of different sizes."""
    writer = Writer(open_bucket(tmp_path / "store"), stream())
    for number, lengths in enumerate(LENGTHS):
        stored = episodes(writer.spec, lengths, first=5 * number, ends=ENDS[: len(lengths)], version=10 * number)
        writer.commit(number % 3, stored)
    return tmp_path / "store"


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a Dict and a Tuple space, text, and values that may be absent."""
    folder, generator, log = tmp_path_factory.mktemp("nested"), np.random.default_rng(0), MemoryLog(clock=Clock())
    log.create(TOPIC)
    incarnation = append(log, encode_begin(NESTED, "pod-0", "a-start"), "pod-0").offset
    batch = make_batch(NESTED, make_rows(generator, chunks=8, from_start=True), generator=generator)
    append(log, encode_chunks(NESTED, batch, producer="pod-0", incarnation=incarnation, sequence=0), "pod-0")
    store_all(log, open_bucket(folder))
    return folder


def loader(dataset: ReplayDataset, workers: int = 0, *, spawn: bool = False, **arguments: Any) -> DataLoader[Any]:
    context = ("spawn" if spawn else "fork") if workers else None
    patience = 60.0 if workers else 0.0
    return DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=context,
        timeout=patience,
        **arguments,
    )


def taken(batches: Any, count: int) -> list[Any]:
    return list(itertools.islice(batches, count))


def same(one: Any, other: Any) -> bool:
    """Whether two structures hold the same, and the same types of it."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list):
        # A loader makes lists of tuples.
        return isinstance(other, tuple | list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return type(one) is type(other) and one.dtype == other.dtype and one.tolist() == other.tolist()
    return bool(one == other)


def rewards(batches: Any) -> list[float]:
    """The reward names the episode and the step."""
    return torch.cat([batch["reward"] for batch in batches]).tolist()


def joined(lists: Iterable[list[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


# Structure and dtypes


def test_a_batch_is_the_view_s_as_tensors(folder: Path) -> None:
    batch = next(iter(ReplayDataset(folder, batch_size=7, n_step=2)))
    plain = next(Replay.open(folder).transitions(7, n_step=2))
    assert {name: (tuple(value.shape), value.dtype) for name, value in batch.items()} == {
        name: (value.shape, torch.from_numpy(value).dtype) for name, value in plain.items()
    }


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("view", ["transitions", "sequences", "scan", "episodes"])
def test_every_structure_arrives_as_it_is_stored(nested: Path, view: Any, workers: int) -> None:
    drawn = {"seed": np.random.default_rng(np.random.SeedSequence(3, spawn_key=(0, 0)))}
    plain = getattr(Replay.open(nested), view)(**(drawn if view in {"transitions", "sequences"} else {}))
    dataset = ReplayDataset(nested, view, seed=3 if view in {"transitions", "sequences"} else None)
    given = taken(loader(dataset, workers), 3)
    assert given
    for batch, expected in zip(given, plain, strict=False):
        assert type(batch) is dict
        assert same(batch, tensors(expected))
        assert isinstance(batch["observation"]["place"], torch.Tensor)
        assert isinstance(batch["observation"]["said"], np.ndarray)


def test_what_may_be_absent_says_where_it_is(nested: Path) -> None:
    plain = next(Replay.open(nested).transitions(64, seed=0))
    batch = tensors(plain)
    assert isinstance(batch["action"], tuple)
    for name in ("info.place", "next_info.place", "log_prob"):
        absent = np.ma.getmaskarray(plain[name])
        assert absent.any()
        assert not absent.all()
        assert batch[f"{name}.present"].dtype == torch.bool
        np.testing.assert_array_equal(batch[f"{name}.present"].numpy(), ~absent)
        np.testing.assert_array_equal(batch[name].numpy()[~absent], plain[name].compressed())
    assert not isinstance(batch["log_prob"], np.ndarray)
    assert "reward.present" not in batch


@pytest.mark.parametrize("dtype", ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))])
def test_every_dtype_stays_and_shares_memory(dtype: str) -> None:
    array = np.arange(6).astype(dtype).reshape(2, 3)
    tensor = tensors({"x": (array[1:],)})["x"][0]
    assert tensor.dtype == getattr(torch, dtype)
    array[1, 0] ^= 1
    np.testing.assert_array_equal(tensor.numpy(), array[1:])


@pytest.mark.filterwarnings("error")
def test_what_is_not_to_be_written_is_copied(folder: Path) -> None:
    episode = next(Replay.open(folder).episodes())
    assert not episode.observation.flags.writeable
    given = tensors(episode)
    given["observation"][...] = 7.0
    assert episode.observation[0, 1] == 0.0
    assert (given["id"], given["length"], given["ends"]) == (episode.id, 1, Ends.TERMINATED)
    assert given["extras"]["logits"].shape == (1, 3)


def test_a_batch_is_shipped_in_one_piece() -> None:
    """Large or small; a loader that converts a copy of it, as it does by itself, leaves it one."""
    for items in (3, 1 << 20):
        values = {
            "a": torch.arange(items, dtype=torch.int16),
            "b": {"c": (torch.tensor(2.5), torch.zeros(0, 4)), "d": [torch.ones(3, 3, dtype=torch.bool).T]},
            "text": np.array(["x", None], object),
            "n": 3,
        }
        shipped = copy.copy(Shipped(values))
        function, parts = shipped.__reduce__()
        assert isinstance(shipped, Shipped)
        arrived = function(*parts)
        assert type(arrived) is dict
        assert same(arrived, values)
        loose: list[torch.Tensor] = []
        mapped(loose.append, parts[1])
        assert not loose
    function, parts = Shipped({"n": 1}).__reduce__()
    assert function(*parts) == {"n": 1}


# Over workers and ranks


def test_a_seed_gives_one_order_for_a_number_of_workers(folder: Path) -> None:
    def orders(workers: int, seed: int, rank: int = 0) -> list[float]:
        dataset = ReplayDataset(folder, batch_size=8, seed=seed, rank=rank, world_size=2)
        return rewards(taken(loader(dataset, workers), 6))

    assert orders(2, 1) == orders(2, 1)
    different = [tuple(orders(workers, seed, rank)) for workers in (0, 2) for seed in (1, 2) for rank in (0, 1)]
    assert len(set(different)) == len(different)


def test_each_worker_draws_for_itself(folder: Path) -> None:
    batches = taken(loader(ReplayDataset(folder, batch_size=16, seed=0), 3), 6)
    assert len({tuple(batch["reward"].tolist()) for batch in batches}) == 6
    # Which worker a batch is of does not depend on how many there are.
    fewer = taken(loader(ReplayDataset(folder, batch_size=16, seed=0), 2), 4)
    assert all(map(same, (batches[0], batches[1], batches[3], batches[4]), fewer))


def test_without_a_seed_torch_s_decides(folder: Path) -> None:
    dataset = ReplayDataset(folder, batch_size=8)

    def twice(workers: int) -> list[float]:
        torch.manual_seed(5)
        batches = loader(dataset, workers)
        return rewards([*taken(batches, 2), *taken(batches, 2)])

    for workers in (0, 2):
        first = twice(workers)
        assert twice(workers) == first
        assert first[:16] != first[16:]


@pytest.mark.parametrize(
    "where", [Where(), Where(length=(2, 8)), Where(policy_version=(10, 12)), Where(length=(40, 40))]
)
@pytest.mark.parametrize("of", [1, 2, 3, 7, 60])
def test_shares_have_nothing_in_common_and_everything_together(folder: Path, of: int, where: Where) -> None:
    spec = stream()
    for partition, last in enumerate(([3, 0, 0], [0, 2], [1, 0])):
        # Aborted before a first step, at the ends of segments too.
        aborted = episodes(spec, last, first=50 + 3 * partition, ends=Ends.ABORTED)
        Writer(open_bucket(folder), spec).commit(7 + partition, aborted)
    replay = Replay.open(folder)
    shares = [Share.of_where(where, number, of) for number in range(of)]

    def each(view: str) -> list[list[Any]]:
        return [list(getattr(replay, view)(where=share)) for share in shares]

    steps = [joined(batch["reward"].tolist() for batch in batches) for batches in each("scan")]
    assert joined(steps) == joined(batch["reward"].tolist() for batch in replay.scan(where=where))
    found = [[episode.id for episode in share] for share in each("episodes")]
    assert joined(found) == [episode.id for episode in replay.episodes(where=where)]
    if not where.at(replay._snapshot):
        fair, longest = replay.steps / of, 40
        assert all(fair - longest < len(of_share) < fair + longest for of_share in steps)


@pytest.mark.parametrize(("workers", "ranks"), [(0, 1), (2, 1), (0, 3), (2, 2)])
def test_what_is_read_once_is_divided_among_workers_and_ranks(folder: Path, workers: int, ranks: int) -> None:
    if ranks > 1:
        snapshots.create(open_bucket(folder), "now")
    place = [{"rank": rank, "world_size": ranks, "snapshot": "now" if ranks > 1 else None} for rank in range(ranks)]
    scans = [rewards(loader(ReplayDataset(folder, "scan", batch_size=4, **of), workers)) for of in place]
    assert all(scans)
    assert sorted(joined(scans)) == sorted(rewards(ReplayDataset(folder, "scan")))
    read = [episode["id"] for of in place for episode in loader(ReplayDataset(folder, "episodes", **of), workers)]
    assert sorted(read) == sorted(episode.id for episode in Replay.open(folder).episodes())


def test_workers_read_one_snapshot_whatever_is_stored_meanwhile(folder: Path) -> None:
    dataset = ReplayDataset(folder, "scan")
    _more(folder)
    for workers in (0, 2):
        assert len(rewards(loader(dataset, workers))) == STEPS
    assert len(rewards(ReplayDataset(folder, "scan"))) == STEPS + 500


def test_a_share_may_be_empty_and_the_whole_may_not(folder: Path) -> None:
    assert len(rewards(loader(ReplayDataset(folder, "scan", where=Where(length=(40, 40))), 3))) == 40
    for workers in (0, 2):
        with pytest.raises(StoreError, match=r"no step in the store fulfils length \(41, 41\)"):
            taken(loader(ReplayDataset(folder, "scan", where=Where(length=(41, 41))), workers), 1)


@pytest.mark.parametrize("where", [None, Where(length=(1, None))])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_share_may_be_hidden_and_the_whole_may_not(tmp_path: Path, workers: int, where: Where | None) -> None:
    spec = dataclasses.replace(stream(), policy={"connectors": [{"name": "stack"}]})
    writer = Writer(open_bucket(tmp_path), spec)
    lost = episodes(spec, [5, 5], first=1)
    at = lost.batch.schema.get_field_index("continues")
    batch = lost.batch.set_column(at, lost.batch.schema.field(at), pa.array([0, 1], pa.int64()))
    writer.commit(0, dataclasses.replace(lost, batch=batch))

    def read(view: Any) -> DataLoader[Any]:
        return loader(ReplayDataset(tmp_path, view, where=where, connectors=True), workers)

    for view in ("scan", "episodes"):
        with pytest.raises(StoreError, match="can be shown as the policy saw it"):
            taken(read(view), 1)
    writer.commit(1, episodes(spec, [5, 5], first=10))
    assert len(rewards(read("scan"))) == 10
    assert len(list(read("episodes"))) == 2


def test_processes_of_torch_distributed_are_ranks(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ends = []
    for rank in range(2):
        ours, theirs = context.Pipe()
        context.Process(target=_join, args=(rank, tmp_path, theirs), daemon=True).start()
        ends.append(ours)
    assert all(end.poll(60) for end in ends)
    assert [end.recv() for end in ends] == [(0, 2), (1, 2)]


def _join(rank: int, folder: Path, told: Connection) -> None:
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    dataset = ReplayDataset(folder)
    told.send((dataset._rank, dataset._world_size))
    torch.distributed.barrier()


def test_workers_may_be_spawned(folder: Path) -> None:
    """With all that travels to them; what comes back is what forked ones give."""
    arguments = {"choose": Uniform(), "where": Where(length=(2, None)), "cache": Cache(folder / "cache")}
    dataset = ReplayDataset(folder, batch_size=8, seed=0, **arguments)
    spawned = taken(loader(dataset, 1, spawn=True), 3)
    assert all(map(same, spawned, taken(loader(dataset, 1), 3)))


# Several batches at a time


def together(dataset: ReplayDataset, workers: int, **settings: Any) -> ReplayLoader:
    context = "fork" if workers else None
    patience = 60.0 if workers else 0.0
    return ReplayLoader(dataset, num_workers=workers, multiprocessing_context=context, timeout=patience, **settings)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("view", ["transitions", "sequences", "scan", "episodes"])
def test_batches_that_are_handed_over_together_are_those_of_a_plain_loader(
    nested: Path, view: Any, workers: int
) -> None:
    arguments = {} if view == "episodes" else {"batch_size": 3}
    dataset = ReplayDataset(nested, view, seed=3 if view in {"transitions", "sequences"} else None, **arguments)
    given = taken(together(dataset, workers), 40)
    assert len(given) > 3
    assert all(type(batch) is dict for batch in given)
    assert same(given, taken(loader(dataset, workers), 40))


@pytest.mark.parametrize("batch_size", [4, 1 << 12, 1 << 16])
def test_small_batches_are_handed_over_together(folder: Path, batch_size: int) -> None:
    """Thirty-two at most, and no more than a megabyte unless one is larger."""
    dataset = ReplayDataset(folder, batch_size=batch_size, columns=["observation", "reward", "action"])
    size = sum(tensor.nbytes for tensor in next(iter(dataset)).values())
    expected = min(32, max(1, (1 << 20) // size))
    assert [len(batches) for batches in taken(_handed_over(dataset), 3)] == 3 * [expected]


def _handed_over(dataset: ReplayDataset) -> Any:
    """What one worker hands over, one hand-over after the other."""
    return DataLoader.__iter__(together(dataset, 1))


def test_two_workers_read_everything_once_together(folder: Path) -> None:
    assert sorted(rewards(together(ReplayDataset(folder, "scan", batch_size=4), 2))) == sorted(
        rewards(ReplayDataset(folder, "scan"))
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_ends_what_it_ends_in_a_plain_loader(folder: Path, workers: int) -> None:
    """What its worker has drawn before is given before it; another worker's batches go on."""
    dataset = ReplayDataset(folder, "scan", batch_size=2)
    last = list(open_bucket(folder).list("segments/00002"))
    for name in last:
        open_bucket(folder).delete(name)
    plain, given = (_until_the_end(make(dataset, workers)) for make in (loader, together))
    assert len(plain) > 3
    assert sorted(plain, key=str) == sorted(given, key=str)
    assert [told for told in given if isinstance(told, str)] == [f"segment {last[0]}: it is missing"]


def _until_the_end(batches: DataLoader[Any]) -> list[float | str]:
    """The rewards of all batches, and what was raised instead of some."""
    found: list[float | str] = []
    ahead = iter(batches)
    while True:
        try:
            found += next(ahead)["reward"].tolist()
        except StopIteration:
            return found
        except CorruptStoreError as error:
            found += re.findall(r"segment \S+: it is missing", str(error))


def test_a_loader_holds_no_batch_that_was_given(folder: Path) -> None:
    for workers in (0, 1):
        batches = iter(together(ReplayDataset(folder, batch_size=4), workers))
        given = weakref.ref(next(batches)["reward"])
        assert given() is None


def test_text_counts_for_what_is_handed_over_together() -> None:
    assert _bytes({"a": torch.zeros(4), "text": (np.array(["xyz", None], object),), "n": "abc"}) == 19


def test_a_loader_does_not_make_batches_of_batches(folder: Path) -> None:
    dataset = ReplayDataset(folder)
    with pytest.raises(SettingsError, match="batch_size, shuffle, collate_fn: the dataset makes the batches"):
        ReplayLoader(dataset, batch_size=4, shuffle=True, collate_fn=list)
    assert taken(ReplayLoader(dataset, batch_size=None, shuffle=False), 1)


# While the store grows


def _more(folder: Path) -> None:
    """Commit an episode of 500 steps, number 100."""
    spec = stream()
    Writer(open_bucket(folder), spec).commit(9, episodes(spec, [500], first=100))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_refreshing_dataset_draws_from_what_was_stored_meanwhile(folder: Path, workers: int) -> None:
    def new(batch: dict[str, torch.Tensor]) -> bool:
        return bool((batch["reward"] >= 100_000).any())

    asked = {0.0: True, 1e6: False, None: False}
    given = [
        iter(loader(ReplayDataset(folder, batch_size=32, refresh_seconds=seconds, seed=0), workers))
        for seconds in asked
    ]
    assert not any(new(next(batches)) for batches in given)
    _more(folder)
    # A worker has drawn two ahead before it looks again.
    assert [new(taken(batches, 5)[-1]) for batches in given] == list(asked.values())


def test_a_store_that_does_not_answer_is_asked_again_later(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Away:
        def refresh(self) -> bool:
            raise StoreUnavailableError("503 Slow Down")

    away: Any = Away()
    assert list(_Refreshing(away, iter([0, 1]), 0.0)) == [0, 1]
    # Before the second, and before the end.
    assert caplog.text.count("503 Slow Down") == 2


# Errors


@pytest.mark.parametrize("seconds", [None, 0.0])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [loader, together])
def test_an_error_ends_no_endless_view(folder: Path, make: Any, workers: int, seconds: float | None) -> None:
    away = (folder / "segments").rename(folder / "away")
    batches = iter(make(ReplayDataset(folder, batch_size=8, refresh_seconds=seconds), workers))
    for _ in range(2 + 2 * workers):
        with pytest.raises(CorruptStoreError):
            next(batches)
    away.rename(folder / "segments")
    for _ in range(2 * workers):
        # What its workers have tried by now.
        with contextlib.suppress(CorruptStoreError):
            next(batches)
    assert len(taken(batches, 2 + 2 * workers)) == 2 + 2 * workers


def test_a_worker_s_error_is_raised_with_its_message(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"DataLoader worker process 0[\s\S]*no store.json there"):
        next(iter(loader(ReplayDataset(tmp_path / "none"), 1)))
    dataset = ReplayDataset(folder, "scan", batch_size=4)
    last = list(open_bucket(folder).list("segments/00002"))
    for name in last:
        open_bucket(folder).delete(name)
    batches = iter(loader(dataset, 1))
    with pytest.raises(CorruptStoreError, match=f"segment {last[0]}: it is missing"):
        list(batches)


def test_workers_of_an_object_store_must_not_be_forked(s3_url: str, tmp_path: Path) -> None:
    """Its client's threads are not forked with it: who waits for them waits for ever."""
    writer = Writer(open_bucket(s3_url), stream())
    writer.commit(0, episodes(writer.spec, [5, 6, 7]))
    dataset = ReplayDataset(s3_url, "scan", cache=Cache(tmp_path))
    assert len(rewards(dataset)) == 18
    with pytest.raises(SettingsError, match="spawn"):
        next(iter(loader(dataset, 1)))


class Learning(Uniform):
    """Is told of what was drawn."""

    def update(self, index: Any, priorities: Any) -> None:
        raise NotImplementedError


def test_what_learns_from_the_learner_does_not_draw_in_a_worker(folder: Path) -> None:
    for choose in (Learning(), Mixture([(Uniform(), 1), (Learning(), 1)])):
        dataset = ReplayDataset(folder, choose=choose)
        assert taken(dataset, 2)
        with pytest.raises(SettingsError, match="new priorities do not reach a worker"):
            next(iter(loader(dataset, 1)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"view": "steps"}, "view 'steps': there are transitions, sequences, scan, episodes"),
        ({"view": ["scan"]}, r"view \['scan'\]: there are transitions"),
        ({"rank": 1}, "give both"),
        ({"rank": 2, "world_size": 2}, "rank 2 of world_size 2"),
        ({"rank": -1, "world_size": 2}, "rank -1: ranks begin at 0"),
        ({"rank": "0", "world_size": 2}, "rank '0': a whole number, from 0 on"),
        ({"rank": 0.5, "world_size": 2}, "rank 0.5: a whole number, from 0 on"),
        ({"rank": 0, "world_size": 1.5}, "world_size 1.5: a whole number, from 1 on"),
        ({"view": "scan", "rank": 0, "world_size": 2}, "scan over 2 ranks: each would read another snapshot"),
        ({"view": "scan", "seed": 0}, "scan draws nothing"),
        ({"seed": -1}, "seed -1: a seed is at least 0"),
        ({"seed": 1.5}, "seed 1.5: a whole number, from 0 on"),
        ({"view": "episodes", "refresh_seconds": 1.0}, "episodes reads one snapshot"),
        ({"refresh_seconds": 1.0, "snapshot": "now"}, "was asked for and stays"),
        ({"refresh_seconds": -1.0}, "0 or more"),
        ({"refresh_seconds": math.nan}, "refresh_seconds nan: 0 or more"),
        ({"refresh_seconds": "x"}, "refresh_seconds 'x': a number"),
        ({"cache": "x"}, "cache 'x': a Cache, as in"),
        ({"batchsize": 8}, r"arguments \['batchsize'\]: transitions takes batch_size, n_step, .*connectors$"),
        ({"view": "sequences", "n_step": 2}, r"arguments \['n_step'\]: sequences takes batch_size, length"),
        ({"view": "scan", "where": "x"}, "where 'x': a Where, as in"),
        ({"view": "episodes", "batch_size": 2}, r"arguments \['batch_size'\]: episodes takes where"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(folder: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ReplayDataset(folder, **arguments)


def test_a_store_is_told_by_where_it_is(folder: Path) -> None:
    for store in (Replay.open(folder), open_bucket(folder)):
        with pytest.raises(SettingsError, match="a folder or a URL, for each worker opens the store by itself"):
            ReplayDataset(store)  # type: ignore[arg-type]  # it is none


# Ahead of time, on a device


def test_pinning_is_harmless_where_there_is_no_accelerator(nested: Path) -> None:
    plain = taken(loader(ReplayDataset(nested, seed=0), 1), 2)
    pinned = taken(loader(ReplayDataset(nested, seed=0), 1, pin_memory=True), 2)
    assert all(map(same, plain, pinned))
    assert pinned[0]["reward"].is_pinned() is torch.cuda.is_available()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_to_a_device_ahead_of_time(nested: Path, workers: int) -> None:
    expected = taken(loader(ReplayDataset(nested, seed=0), workers), 4)
    with to_device(loader(ReplayDataset(nested, seed=0), workers), "cpu", depth=3) as batches:
        assert isinstance(batches, Prefetch)
        assert all(map(same, taken(batches, 4), expected))


def test_arrays_come_to_a_device_as_tensors(nested: Path) -> None:
    replay = Replay.open(nested)
    with to_device(replay.transitions(16), torch.device("cpu")) as batches:
        assert all(map(same, taken(batches, 3), map(tensors, replay.transitions(16))))
    with to_device(replay.transitions(16, columns=["reward"]), "meta") as batches:
        assert next(batches)["reward"].device.type == "meta"


def test_a_worker_s_error_comes_through_the_thread(tmp_path: Path) -> None:
    with (
        to_device(loader(ReplayDataset(tmp_path), 1), "cpu") as batches,
        pytest.raises(StoreError, match=r"no store\.json"),
    ):
        next(batches)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pin_memory", [False, True])
def test_batches_are_whole_on_a_gpu(nested: Path, workers: int, pin_memory: bool) -> None:
    """Computed with as soon as they come, while the copies of the next ones run, and dropped."""
    dataset = ReplayDataset(nested, batch_size=4_096, seed=0)
    expected = taken(loader(dataset, workers), 50)
    with to_device(loader(dataset, workers, pin_memory=pin_memory), "cuda", depth=2) as batches:
        for batch, plain in zip(batches, expected, strict=False):
            place = batch["observation"]["place"]
            assert place.is_cuda
            doubled = place * 2
            del place
            assert torch.equal(doubled.cpu(), plain["observation"]["place"] * 2)
            assert isinstance(batch["observation"]["said"], np.ndarray)
            assert same(
                {name: batch[name].cpu() for name in ("reward", "info.place.present")},
                {name: plain[name] for name in ("reward", "info.place.present")},
            )
