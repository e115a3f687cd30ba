from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from penstock_producers.envs.canonical import CanonicalEnv
from penstock_producers.envs.vector_infos import final_infos
from penstock_producers.envs.vector_observations import VectorObservations
from penstock_schemas.errors import EnvError
from penstock_schemas.spaces import Box, Discrete, Text, flatten, unflatten
from tests.producers.canonical_episodes import Episode, plain, record, same, zeros
from tests.producers.env_zoo import CountingVectorEnv
from tests.producers.nested_zoo import NestedEnv, NestedVectorEnv

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from penstock_schemas.spaces import LeafSpace, Leaves

MODES = tuple(AutoresetMode)
KEYS = ("at", "late", "mask", "word", "flag")


def make(kind: str, mode: AutoresetMode, num_envs: int, infos: tuple[str, ...] = ()) -> CanonicalEnv:
    if kind == "own":
        return CanonicalEnv(NestedVectorEnv(num_envs), "nested", seed=5, infos=infos)
    kinds: dict[str, Any] = {"sync": SyncVectorEnv, "async": partial(AsyncVectorEnv, shared_memory=False)}
    made = kinds[kind]([NestedEnv] * num_envs, copy=False, autoreset_mode=mode)
    return CanonicalEnv(made, "nested", seed=5, infos=infos)


class Actor:
    """Draws actions in wire dtypes, and keeps those of each env."""

    def __init__(self, num_envs: int) -> None:
        self.generator = np.random.default_rng(3)
        self.sent: list[list[tuple[Any, ...]]] = [[] for _ in range(num_envs)]

    def __call__(self, ready: NDArray[np.int32], observation: Leaves) -> Leaves:
        n, generator = len(ready), self.generator
        texts = np.array([("a", "ab", "bab")[i] for i in generator.integers(0, 3, n)], object)
        action = (
            generator.integers(1, 5, n).astype(np.int8),
            generator.integers(0, 3, (n, 2)).astype(np.uint8),
            generator.uniform(-1, 1, (n, 2)),
            texts,
        )
        for position, i in enumerate(ready.tolist()):
            self.sent[i].append(tuple(leaf[position] for leaf in action))
        return action


def twin(env: CanonicalEnv, seed: int, sent: list[tuple[Any, ...]], episodes: int, skip: bool) -> list[Episode]:
    """The episodes of a single env that takes the same actions; with `skip` one is lost at each reset."""
    single = NestedEnv()
    actions = iter(sent)
    course = []
    for e in range(episodes):
        if e and skip:
            next(actions)
        observation, info = single.reset(seed=None if e else seed)
        episode = Episode([_values(env, observation)], infos=[_infos(info)], seed=None if e else seed)
        done = False
        while not done:
            choice, many, box, text = next(actions)
            action = unflatten(env.action_space, (np.int64(choice), many.astype(int), box.astype(np.float32), text))
            observation, reward, done, _, info = single.step(action)
            episode.observations.append(_values(env, observation))
            episode.rewards.append(reward)
            episode.infos.append(_infos(info))
        episode.end = (True, False)
        course.append(episode)
    return course


def _values(env: CanonicalEnv, observation: Any) -> tuple[Any, ...]:
    return tuple(plain(leaf) for leaf in flatten(env.observation_space, observation))


def _infos(info: dict[str, Any]) -> tuple[Any, ...]:
    stored: tuple[Callable[[Any], Any], ...] = (int, float, plain, str, int)
    return tuple(None if key not in info else cast(info[key]) for key, cast in zip(KEYS, stored, strict=True))


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *(("sync", mode) for mode in MODES),
        ("async", AutoresetMode.SAME_STEP),
        ("async", AutoresetMode.DISABLED),
    ],
)
def test_nested_episodes_and_infos_are_those_of_a_single_env(kind: str, mode: AutoresetMode) -> None:
    env = make(kind, mode, 3, KEYS)
    try:
        assert [(column.name, column.shape, column.dtype.name) for column in env.infos] == [
            ("info.at", (), "int64"),
            ("info.late", (), "float32"),
            ("info.mask", (2,), "int8"),
            ("info.word", (), "object"),
            ("info.flag", (), "uint8"),
        ]
        act = Actor(3)
        recorded = record(env, 6, act)
        for i in range(3):
            course = twin(env, 5 + i, act.sent[i], 6, skip=mode is AutoresetMode.NEXT_STEP)
            assert same(recorded[i], course)
        assert not env.unstorable
    finally:
        env.close()


def test_last_observations_may_come_as_a_batch_of_the_spaces_structure() -> None:
    env = make("own", AutoresetMode.SAME_STEP, 3)
    act = Actor(3)
    recorded = record(env, 6, act)
    assert env.reward_dtype == np.int32
    for i in range(3):
        course = twin(env, 5 + i, act.sent[i], 6, skip=False)
        assert same([e.observations for e in recorded[i]], [e.observations for e in course])
        assert [e.rewards for e in recorded[i]] == [e.rewards for e in course]


BYTES = Box((2,), np.dtype(np.uint8))


def with_final(space: LeafSpace, last: Any) -> Any:
    """What is kept of the last observation of one env."""
    final = np.empty(1, object)
    final[0] = last
    batch = np.zeros((1, *space.shape), space.dtype)
    observations = VectorObservations(space, 1, "E")
    return observations.with_final((batch,), np.array([True]), {"final_obs": final})[0].tolist()


@pytest.mark.parametrize(
    ("space", "last"),
    [
        (Discrete(3), 1.7),
        (Discrete(3, dtype=np.dtype(np.int8)), 257),
        (BYTES, np.array([300.0, 0.7])),
        (BYTES, np.array([-1, 256])),
        (Box((), np.dtype(np.uint64)), -1),
    ],
)
def test_a_last_observation_that_would_become_another_is_refused(space: LeafSpace, last: Any) -> None:
    with pytest.raises(EnvError, match="environment E: final_obs must be an array of shape"):
        with_final(space, last)


def test_a_last_observation_may_be_of_a_wider_dtype_than_its_space_and_a_text_of_any_end() -> None:
    assert with_final(BYTES, np.array([3, 255])) == [[3, 255]]
    assert with_final(Discrete(3, dtype=np.dtype(np.int8)), 2.0) == [2]
    assert with_final(Box((), np.dtype(np.float32)), 0.1) == [np.float32(0.1)]
    assert with_final(Text(5), "a\0") == ["a\0"]


def test_final_infos_of_another_form_are_refused() -> None:
    with pytest.raises(EnvError, match=r"environment E: infos\['final_info'\] must be a dict .* but is a ndarray"):
        final_infos({"final_info": np.array([{"at": 1}, None], object)}, "E")


def test_an_info_of_the_next_episode_is_not_that_of_the_last_observation() -> None:
    # It gives `at` with its resets only, and no `final_info`.
    env = make("own", AutoresetMode.SAME_STEP, 3, ("at",))
    for mine in record(env, 4, Actor(3)):
        for episode in mine:
            assert [at for (at,) in episode.infos[1:]] == [None] * len(episode.rewards)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_column_cannot_hold_is_left_out_and_counted(mode: AutoresetMode) -> None:
    env = make("sync", mode, 2, ("ragged",))  # a list of one item with a reset, and one more with each step
    assert env.infos[0].shape == (1,)
    recorded = record(env, 4, Actor(2))
    for mine in recorded:
        for episode in mine:
            assert [ragged for (ragged,) in episode.infos if ragged is not None] == [[0.5]]
    assert env.unstorable["ragged"] > 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("nowhere", r"environment nested: no info 'nowhere'.*'at'"),
        ("parts", r"environment nested: info 'parts' .*dict"),
    ],
)
def test_an_info_that_is_never_there_or_is_a_dict_is_refused(mode: AutoresetMode, key: str, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make("sync", mode, 2, ("at", key))


class OneInfoBuffer(CountingVectorEnv):
    """Gives the step of each env as an info, always in the same arrays, and whether it is odd, without a mask."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, "DISABLED")
        self.at, self.mask = np.zeros(num_envs, np.int16), np.zeros(num_envs, np.bool_)

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0], self.told()

    def step(self, actions: Any) -> Any:
        return *super().step(actions)[:4], self.told()

    def told(self) -> dict[str, Any]:
        self.at[:] = [counter.step_ for counter in self.counters]
        self.mask[:] = self.at % 3 != 0
        return {"at": self.at, "_at": self.mask, "odd": self.at % 2 == 1}


def test_infos_are_kept_though_a_masked_reset_writes_into_their_arrays() -> None:
    env = CanonicalEnv(OneInfoBuffer(4), seed=2, infos=("odd", "at"))
    assert [column.dtype.name for column in env.infos] == ["uint8", "int16"]
    for mine in record(env, 6, zeros):
        for episode in mine:
            steps = range(len(episode.observations))
            assert episode.infos == [(step % 2, step if step % 3 else None) for step in steps]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({4: []}, "infos must be a dict, but is a list"),
        ({2: [False, False], 3: [False, False]}, "terminated must be an array"),
        (
            {4: {"at": np.zeros(2), "_at": np.ones(1, np.bool_)}},
            r"infos\['_at'\] must tell of each of 2 envs .* shape \(1,\)",
        ),
    ],
)
def test_infos_of_an_env_that_answers_wrongly_are_not_taken(answers: dict[int, Any], message: str) -> None:
    class Wrong(CountingVectorEnv):
        def step(self, actions: Any) -> Any:
            return tuple(answers.get(at, part) for at, part in enumerate(super().step(actions)))

    def run() -> None:
        env = CanonicalEnv(Wrong(2), infos=("at",))
        env.reset()
        env.send(np.arange(2, dtype=np.int32), (np.zeros(2, np.int64),))
        env.recv()

    with pytest.raises(EnvError, match=message):
        run()


def broken(change: Callable[[dict[str, Any]], Any]) -> CanonicalEnv:
    made = NestedVectorEnv(2)
    batch = made.batch
    made.batch = lambda observations: change(dict(batch(observations)))  # type: ignore[method-assign]  # broken on purpose
    made.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    return CanonicalEnv(made, "broken")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: batch.pop("bits"), "observation is not of its space's structure"),
        (lambda batch: None, "observation is not of its space's structure: TypeError"),
        (lambda batch: {k: v for k, v in batch.items() if k != "bits"}, "structure: KeyError: 'bits'"),
        (lambda batch: {**batch, "inner": (batch["inner"][0],)}, "structure: IndexError"),
        (
            lambda batch: {**batch, "on.off": batch["on.off"][:, :1]},
            r"observation\.on~1off must be .*\(2, 2\) and dtype bool, but is shape \(2, 1\)",
        ),
        (
            lambda batch: {**batch, "inner": (batch["inner"][0].astype(np.int8), batch["inner"][1])},
            r"observation\.inner\.0 must be .* dtype int64, but is .* dtype int8",
        ),
        (
            lambda batch: {**batch, "inner": (batch["inner"][0], ("one",))},
            r"observation\.inner\.1 must be .* shape \(2,\) .*but is shape \(1,\)",
        ),
        (lambda batch: {**batch, "inner": (batch["inner"][0], ("one", 2))}, r"observation\.inner\.1 must be strings"),
        (lambda batch: {**batch, "inner": (batch["inner"][0], ("one", "\ud800"))}, r"strings.*UTF-8.*surrogates"),
    ],
)
def test_a_batch_that_is_not_of_its_space_is_an_error_that_names_the_leaf(change: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        broken(change)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda final: final.pop("bits"), r"final_obs is not of its space's structure: KeyError: 'bits'"),
        (lambda final: final.update(bits=final["bits"][:, :1]), r"final_obs\.bits must be .*\(\d, 2, 2\)"),
        (lambda final: final.update(inner=(final["inner"][0], (1, 2, 3))), r"final_obs\.inner\.1 must be strings"),
        (lambda final: final.update(heard=final["heard"].astype(str)), r"final_obs\.heard must be .* dtype <U"),
    ],
)
def test_a_last_observation_that_is_not_of_its_space_is_an_error(spoil: Any, message: str) -> None:
    made = NestedVectorEnv(3)
    env = CanonicalEnv(made, "spoilt", seed=0)
    stepped = made.step

    def step(actions: Any) -> Any:
        answer = stepped(actions)
        spoil(answer[4]["final_obs"])
        return answer

    made.step = step  # type: ignore[method-assign]  # broken on purpose
    with pytest.raises(EnvError, match=message):
        record(env, 3, Actor(3))


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        (True, r"loses the strings of observation\.inner\.1 in its shared memory; .* use lanes"),
        (False, r"shared_memory=False in autoreset mode NEXT_STEP resets twice; .* use lanes"),
    ],
)
def test_what_gymnasiums_async_answers_wrongly_is_refused(shared: bool, message: str) -> None:
    made = AsyncVectorEnv([NestedEnv] * 2, shared_memory=shared)
    try:
        with pytest.raises(EnvError, match=message):
            CanonicalEnv(made)
    finally:
        made.close()
