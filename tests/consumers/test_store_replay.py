"""`penstock-store replay`, over episodes that a real environment gave."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from penstock_consumers.replay import Replay
from penstock_consumers.replay.parts import join, parts_until
from penstock_consumers.store.bucket import open_bucket
from penstock_consumers.store_cli import run
from penstock_schemas.chunks import Ends
from penstock_schemas.columns import Column
from penstock_schemas.log.memory import MemoryLog
from penstock_schemas.messages import encode_begin, encode_chunks
from penstock_schemas.sent import sent_columns
from penstock_schemas.spaces import Box, Dict, Discrete
from penstock_schemas.stream import StreamSpec
from tests.consumers.messages import STREAM, TOPIC, Clock, append, store_all
from tests.schemas.batches import Row, make_batch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

SEED = 7
FLOAT = np.dtype(np.float32)
CARTPOLE = StreamSpec(STREAM, Box((4,), FLOAT), Discrete(2), np.dtype(np.float64), env={"id": "CartPole-v1"})
PENDULUM = StreamSpec(
    STREAM,
    Box((3,), FLOAT),
    Box((1,), FLOAT),
    np.dtype(np.float64),
    extras=(Column("action_sent", (1,), FLOAT),),
    env={"id": "Pendulum-v1", "arguments": {"g": 9.0}, "wrappers": [{"name": "ClipAction"}]},
)
STEPS = 12


def stepped(env: gymnasium.Env[Any, Any], actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """What an env gives from the seed on: all observations, all rewards."""
    observations, rewards = [env.reset(seed=SEED)[0]], []
    for action in actions:
        observation, reward, *_ = env.step(action)
        observations.append(observation)
        rewards.append(reward)
    env.close()
    return np.array(observations), np.array(rewards, np.float64)


def chunked(observations: NDArray[Any], rows: Sequence[Row]) -> NDArray[Any]:
    """The observations as chunks hold them: each of L + 1, the rows of one episode from end to end."""
    ends = np.cumsum([row.steps for row in rows])
    return np.concatenate([observations[end - row.steps : end + 1] for row, end in zip(rows, ends, strict=True)])


def store_of(folder: Path, spec: StreamSpec, rows: Sequence[Row], values: dict[str, NDArray[Any]]) -> str:
    """A store of one message."""
    log = MemoryLog(clock=Clock())
    log.create(TOPIC)
    incarnation = append(log, encode_begin(spec, "a/pod-0", "start"), "a/pod-0").offset
    batch = make_batch(spec, rows, values=values)
    message = encode_chunks(spec, batch, producer="a/pod-0", incarnation=incarnation, sequence=0)
    append(log, message, "a/pod-0")
    store_all(log, open_bucket(folder))
    return str(folder)


def cartpole(folder: Path, rows: Sequence[Row], spec: StreamSpec = CARTPOLE, *, wrong_at: int | None = None) -> str:
    """A store of steps of CartPole, in these rows."""
    actions = np.arange(STEPS) % 2
    observations, rewards = stepped(gymnasium.make("CartPole-v1"), actions)
    if wrong_at is not None:
        observations[wrong_at, 2] += 1
    return store_of(
        folder, spec, rows, {"observation": chunked(observations, rows), "action": actions, "reward": rewards}
    )


WHOLE = (Row(seed=SEED, steps=5), Row(chunk=1, first_step=5, ends=Ends.TRUNCATED, steps=7))
PARTS = (
    Row(seed=SEED, steps=4, ends=Ends.CUT),
    Row(episode=1, steps=3, continues=0, ends=Ends.CUT),
    Row(episode=2, steps=1, continues=1),
    Row(episode=2, chunk=1, first_step=1, steps=4, ends=Ends.TERMINATED),
)


def replayed(store: str, episode: str) -> int:
    return run(["replay", store, "--episode", episode])


def test_an_episode_that_comes_out_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(cartpole(tmp_path, WHOLE), "a/pod-0/0/0/0") == 0
    assert capsys.readouterr().out == "episode a/pod-0/0/0/0: 12 steps give the same observations and rewards\n"


@pytest.mark.parametrize("wrong_at", [0, 5, 12])
def test_an_episode_that_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong_at: int) -> None:
    assert replayed(cartpole(tmp_path, WHOLE, wrong_at=wrong_at), "a/pod-0/0/0/0") == 1
    told = capsys.readouterr().out
    assert told.startswith(f"episode a/pod-0/0/0/0: step {wrong_at}: observation differs at [2]: expected ")


class UnclosableEnv(CartPoleEnv):
    def close(self) -> None:
        raise RuntimeError("the viewer is gone")


def test_an_env_that_raises_when_it_is_closed_hides_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = cartpole(tmp_path, WHOLE, replace(CARTPOLE, env={"id": f"{__name__}:UnclosableEnv"}), wrong_at=5)
    assert replayed(store, "a/pod-0/0/0/0") == 1
    assert ": step 5: observation differs at [2]: expected " in capsys.readouterr().out


@pytest.mark.parametrize(("episode", "joined", "steps"), [(0, 0, 4), (1, 1, 7), (2, 2, 12)])
def test_parts_are_retraced_from_the_one_with_the_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], episode: int, joined: int, steps: int
) -> None:
    assert replayed(cartpole(tmp_path, PARTS), f"a/pod-0/0/0/{episode}") == 0
    told = capsys.readouterr().out
    assert told.endswith(f"{steps} steps give the same observations and rewards\n")
    assert (f"joined with the {joined} parts that it continues" in told) == (joined > 0)


def test_a_part_whose_beginning_is_not_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [replace(row, continues=None) if row.episode == 1 else row for row in PARTS]
    rows[0] = replace(rows[0], episode=0, env=0)
    lost = [replace(row, episode=row.episode + 5, continues=3 if row.continues is not None else None) for row in rows]
    assert replayed(cartpole(tmp_path, lost), "a/pod-0/0/0/7") == 1
    told = capsys.readouterr().err
    assert told.startswith("error: episode a/pod-0/0/0/7 continues a/pod-0/0/0/3, which is not in the store")


def test_the_env_is_made_as_it_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its arguments and wrappers, and the action that was sent, not the one that was drawn."""
    drawn = np.linspace(-9, 9, STEPS, dtype=np.float32).reshape(-1, 1)
    sent = np.clip(drawn, -2, 2)
    observations, rewards = stepped(gymnasium.make("Pendulum-v1", g=9.0), sent)
    rows = [Row(seed=SEED, steps=STEPS, ends=Ends.TRUNCATED)]
    values = {"observation": observations, "action": -drawn, "reward": rewards, "action_sent": drawn}
    assert replayed(store_of(tmp_path / "same", PENDULUM, rows, values), "a/pod-0/0/0/0") == 0
    other = replace(PENDULUM, env={**PENDULUM.env, "arguments": {}})
    capsys.readouterr()
    assert replayed(store_of(tmp_path / "other", other, rows, values), "a/pod-0/0/0/0") == 1
    assert ": step 1: observation differs" in capsys.readouterr().out


def test_what_was_sent_of_a_nested_action_is_joined_leaf_by_leaf(tmp_path: Path) -> None:
    action = Dict((("arm.x", Box((2,), FLOAT)), ("kind", Discrete(3))))
    spec = StreamSpec(STREAM, Box((1,), FLOAT), action, np.dtype(np.float64), extras=sent_columns(action))
    values = {
        "action_sent_0": np.arange(2 * STEPS, dtype=np.float32).reshape(-1, 2),
        "action_sent_1": np.arange(STEPS, dtype=np.int8) % 3,
    }
    replay = Replay.open(store_of(tmp_path, spec, PARTS, values))
    steps = join(parts_until(replay, "a/pod-0/0/0/2"), replay.spec)
    assert [leaf.tolist() for leaf in steps.action_sent] == [leaf.tolist() for leaf in values.values()]


def test_an_env_that_cannot_be_seeded_by_episode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [replace(row, seed=None) for row in WHOLE]
    assert replayed(cartpole(tmp_path, rows), "a/pod-0/0/0/0") == 2
    told = capsys.readouterr().out
    why = "because its env cannot be seeded by episode; with --vectorization lanes each has one"
    assert told == f"episode a/pod-0/0/0/0: it has no seed, {why}\n"


@pytest.mark.parametrize("episode", ["a/pod-0/0/0/1", "pod-0/0/0/0", "a/pod-0/0/0/x", "nonsense"])
def test_an_episode_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], episode: str) -> None:
    assert replayed(cartpole(tmp_path, WHOLE), episode) == 1
    assert f"no episode {episode!r} in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "told"),
    [({}, "its store.json does not name the env"), ({"id": "NoSuchEnv-v0"}, "NoSuchEnv")],
    ids=["not described", "not there"],
)
def test_an_env_that_cannot_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], env: dict[str, Any], told: str
) -> None:
    assert replayed(cartpole(tmp_path, WHOLE, replace(CARTPOLE, env=env)), "a/pod-0/0/0/0") == 1
    assert told in capsys.readouterr().err


def test_an_install_without_the_producer_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cartpole(tmp_path, WHOLE)
    for module in ("penstock_producers.envs.retrace", "penstock_producers.envs.source"):
        monkeypatch.setitem(sys.modules, module, None)
    assert replayed(store, "a/pod-0/0/0/0") == 1
    assert "pip install 'penstock[producer]'" in capsys.readouterr().err
