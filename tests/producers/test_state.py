"""States: what is saved is loaded, whole or by component; and a collector that loads one goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors.numpy import save_file

from penstock_producers.collect import Collector
from penstock_producers.state import Component, describe_generator, load_state, restore_generator, save_state
from penstock_schemas.errors import PolicyError, PolicyRejectedError, SettingsError
from penstock_schemas.policies import PolicyRecord
from tests.producers.collecting import SEED, assert_equal, collector_of, joined

if TYPE_CHECKING:
    from pathlib import Path

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
ARRAYS = st.sampled_from(["f4", "i8", "u1", "?"]).flatmap(
    lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_dims=2))
)
STATES = st.dictionaries(
    st.sampled_from(["counters", "count", "policy"]),
    st.builds(
        Component,
        st.dictionaries(st.text(max_size=3), JSON, max_size=3),
        st.dictionaries(st.sampled_from(["a", "a.b", "weight"]), ARRAYS, max_size=2),
    ),
)


@settings(max_examples=25)
@given(STATES)
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, state: dict[str, Component]) -> None:
    path = tmp_path_factory.mktemp("state") / "state"
    save_state(path, state)
    loaded = load_state(path)
    assert loaded.keys() == state.keys()
    for name, component in state.items():
        assert loaded[name].values == component.values
        assert loaded[name].arrays.keys() == component.arrays.keys()
        for key, value in component.arrays.items():
            assert loaded[name].arrays[key].dtype == value.dtype
            np.testing.assert_array_equal(loaded[name].arrays[key], value)
        assert load_state(path, [name]).keys() == {name}


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_a_generator_goes_on_where_another_stood(bits: Any) -> None:
    one, other = np.random.Generator(bits(1)), np.random.Generator(bits(2))
    one.random(5, np.float32)  # half of a word is left
    restore_generator(other, json.loads(json.dumps(describe_generator(one))))
    np.testing.assert_array_equal(one.random(9, np.float32), other.random(9, np.float32))


def test_a_generator_of_torch_goes_on_where_another_stood() -> None:
    one, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    torch.randn(5, generator=one)
    restore_generator(other, json.loads(json.dumps(describe_generator(one))))
    assert torch.equal(torch.randn(9, generator=one), torch.randn(9, generator=other))


def test_a_generator_of_another_kind_is_told() -> None:
    pcg, torchs = np.random.default_rng(1), torch.Generator()
    for generator, described in (
        (pcg, describe_generator(torchs)),
        (torchs, describe_generator(pcg)),
        (pcg, describe_generator(np.random.Generator(np.random.MT19937(1)))),
    ):
        with pytest.raises(SettingsError, match="not that of one of"):
            restore_generator(generator, described)


def test_a_file_that_is_no_state_is_told(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with pytest.raises(SettingsError, match="cannot be read"):
        load_state(path)
    save_state(path, {"counters": Component({"steps": 3})})
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], b"\x80\x04K\x01."):
        path.write_bytes(damaged)
        with pytest.raises(SettingsError, match="cannot be read"):
            load_state(path)
    save_file({"a": np.zeros(2)}, path)
    with pytest.raises(SettingsError, match="cannot be read"):
        load_state(path)


def test_a_component_that_is_not_there_is_named(tmp_path: Path) -> None:
    save_state(tmp_path / "state", {"counters": Component({})})
    with pytest.raises(SettingsError, match="it has no policy, but counters"):
        load_state(tmp_path / "state", ["policy"])


def test_a_state_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    save_state(path, {"counters": Component({"steps": 3})})
    with pytest.raises(SettingsError, match="state 'counters' cannot be saved"):
        save_state(path, {"counters": Component({"steps": object()})})

    def broken(_: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="the disk is full"):
        save_state(path, {"counters": Component({"steps": 4})})
    assert load_state(path)["counters"].values == {"steps": 3}
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def doubled(collector: Collector) -> dict[str, Any]:
    module: Any = collector.policy
    return {name: value * 2 for name, value in module.module.state_dict().items()}


def numpy_weights(collector: Collector) -> dict[str, Any]:
    return {name: value.numpy() for name, value in doubled(collector).items()}


def seeds(of: dict[tuple[int, int], dict[str, Any]]) -> set[int]:
    return {int(rows["seed"][0]) for rows in of.values() if rows["seed"][0] >= 0}


@pytest.mark.parametrize(
    ("by", "workers", "cut_steps"), [("episodes", 0, None), ("steps", 0, None), ("steps", 1, None), ("steps", 0, 2)]
)
def test_a_collector_goes_on_from_a_state_as_if_it_had_never_stopped(
    tmp_path: Path, by: str, workers: int, cut_steps: int | None
) -> None:
    """Observations, actions, what was recorded of them, seeds and numbers of episodes, to the last bit."""
    wanted: dict[str, Any] = {"n_steps": 25, "reset": True} if by == "steps" else {"n_episodes": 5}
    settings: dict[str, Any] = {"workers": workers, "cut_steps": cut_steps}
    with collector_of("lanes", **settings) as uninterrupted:
        first = joined([uninterrupted.collect(n_steps=14)])
        uninterrupted.load(doubled(uninterrupted))
        uninterrupted.collect(n_steps=9)
        uninterrupted.save(tmp_path / "state")
        more = wanted if cut_steps else {"n_episodes": 4}
        expected = joined([uninterrupted.collect(**wanted), uninterrupted.collect(**more)])
        lifetime = uninterrupted.lifetime
    with collector_of("lanes", **settings) as resumed:
        resumed.collect(3)
        resumed.load_state(tmp_path / "state")
        assert resumed.lifetime.steps == 23
        assert_equal(joined([resumed.collect(**wanted), resumed.collect(**more)]), expected)
        assert (resumed.lifetime.returns, resumed.lifetime.steps) == (lifetime.returns, lifetime.steps)
    # No seed is there twice, and no number; each that is continued is the one before it.
    assert not seeds(expected) & seeds(first)
    assert any(rows["continues"][0] >= 0 for rows in expected.values()) == bool(cut_steps)
    assert {rows["continues"][0] - episode for (_, episode), rows in expected.items() if rows["continues"][0] >= 0} <= {
        -1
    }
    assert not expected.keys() & first.keys()


def test_a_state_after_a_call_by_episodes_is_that_of_the_next_one(tmp_path: Path) -> None:
    with collector_of("lanes") as uninterrupted:
        uninterrupted.collect(n_episodes=4)
        state = uninterrupted.state()
        expected = joined([uninterrupted.collect(20)])
    with collector_of("lanes") as resumed:
        resumed.load_state(state)
        assert_equal(joined([resumed.collect(20)]), expected)


def test_a_component_is_loaded_by_itself(tmp_path: Path) -> None:
    with collector_of("lanes") as saved:
        saved.load(
            PolicyRecord(5, {name: value.numpy() for name, value in doubled(saved).items()}, {"temperature": 2.0})
        )
        saved.collect(12)
        saved.save(tmp_path / "policy", ["policy"])
        saved.save(tmp_path / "all")
        digest = saved.policy.digest
    with collector_of("lanes") as loaded:
        loaded.load_state(tmp_path / "policy")
        assert (loaded.policy.version, loaded.policy.digest, loaded.lifetime.steps) == (5, digest, 0)
    with collector_of("lanes") as loaded:
        loaded.load_state(tmp_path / "all", ["counters"])
        assert (loaded.policy.version, loaded.lifetime.steps) == (0, 12)
        with pytest.raises(SettingsError, match="it has no counters, but policy"):
            loaded.load_state(tmp_path / "policy", ["counters"])
        with pytest.raises(SettingsError, match="component 'weights'"):
            loaded.save(tmp_path / "weights", ["weights"])


def test_counters_of_a_ready_made_vector_go_on() -> None:
    with collector_of("SAME_STEP") as saved, collector_of("SAME_STEP") as loaded:
        numbers = {(episode.env, episode.episode) for episode in saved.collect(30).episodes}
        loaded.load_state(saved.state(), ["counters"])
        assert not numbers & {(episode.env, episode.episode) for episode in loaded.collect(30).episodes}


def test_a_state_of_another_kind_of_collector_is_refused() -> None:
    with collector_of("lanes") as saved:
        state = saved.state()
    with collector_of("lanes", num_envs=2) as loaded, pytest.raises(SettingsError, match="of 3 envs, but there are 2"):
        loaded.load_state(state)
    with Collector("CartPole-v1", seed=SEED + 1) as loaded, pytest.raises(SettingsError, match=f"'seed': {SEED}"):
        loaded.load_state(state)
    with Collector("CartPole-v1", seed=SEED) as loaded, pytest.raises(PolicyError, match="has other weights"):
        loaded.load_state(state, ["policy"])
    generators = {"noise": np.random.default_rng(1)}
    with (
        collector_of("lanes", generators=generators) as loaded,
        pytest.raises(SettingsError, match=r"the generators \['actions'\], this collector \['actions', 'noise'\]"),
    ):
        loaded.load_state(state)


def test_weights_that_came_in_elsewhere_cannot_be_saved() -> None:
    with collector_of("lanes") as collector:
        weights = {name: value.numpy() for name, value in doubled(collector).items()}
        collector.policy.load(PolicyRecord(3, weights))
        with pytest.raises(PolicyError, match="version 3 was not loaded by this collector"):
            collector.state()


@pytest.mark.parametrize("number", [0, 1])
def test_other_weights_under_the_number_that_was_loaded_cannot_be_saved(number: int) -> None:
    with collector_of("lanes") as collector:
        collector.load(PolicyRecord(number, numpy_weights(collector)))
        collector.policy.load(PolicyRecord(number, numpy_weights(collector)))
        with pytest.raises(PolicyError, match=f"version {number} was not loaded by this collector"):
            collector.state()


def test_a_version_of_a_module_that_writes_to_its_weights_as_it_runs_is_saved() -> None:
    with collector_of("lanes", policy="tests.producers.policy_zoo:noting") as collector:
        collector.load(numpy_weights(collector))
        collector.collect(7)
        state = collector.state()
        collector.load_state(state)
        assert collector.state()["policy"].values == state["policy"].values


def test_a_generator_is_not_named_as_the_policy_s_own_is() -> None:
    generators = {"actions": np.random.default_rng(1)}
    with pytest.raises(SettingsError, match="generators 'actions': that name is the policy's own; use another"):
        collector_of("lanes", generators=generators)
    with collector_of("lanes") as named, collector_of("lanes", policy=named.policy, generators=generators) as handed:
        assert handed.state()["generators"].values["generators"].keys() == {"actions"}


@pytest.mark.parametrize("components", [["policy"], ["generators"]])
def test_what_follows_a_load_begins_with_a_reset_whatever_was_loaded(components: list[str]) -> None:
    with collector_of("lanes", longest=50) as collector:
        begun = {episode.episode for episode in collector.collect(10).episodes}
        collector.load_state(collector.state(), components)
        episodes = collector.collect(10).episodes
        assert {episode.first_step for episode in episodes} == {0}
        assert not begun & {episode.episode for episode in episodes}


def test_a_state_that_is_refused_changes_nothing() -> None:
    noise = np.random.Generator(np.random.MT19937(1))
    with collector_of("lanes", longest=50, generators={"noise": noise}) as saved:
        saved.load(doubled(saved))
        saved.collect(5)
        state = saved.state()
    odd = {
        "counters": Component({**state["counters"].values, "episodes": [0]}),
        "policy": Component(state["policy"].values, {}),
        "generators": Component({**state["generators"].values, "seed": SEED + 1}),
    }
    with collector_of(
        "lanes", longest=50, generators={"noise": np.random.Generator(np.random.MT19937(2))}
    ) as collector:
        collector.collect(7)
        before = collector.state()
        for name, component in odd.items():
            with pytest.raises((SettingsError, PolicyRejectedError)):
                collector.load_state({**state, name: component})
            assert collector.state() == before
        assert {episode.first_step for episode in collector.collect(3).episodes} == {2, 3}


@pytest.mark.parametrize(
    ("component", "altered", "told"),
    [
        ("counters", {"episodes": None}, "component 'counters' .*TypeError"),
        ("counters", {"resets": [1, 2]}, "counts the episodes of 2 envs"),
        ("counters", {"resets": [2**70] * 3}, "component 'counters' of the state is not what"),
        ("counters", {"episodes": [1, -1, 1]}, "component 'counters' .*numbers of episodes"),
        ("counters", {"resets": [1.5, 1, 1]}, "component 'counters' .*numbers of episodes"),
        ("counters", {"lifetime": {}}, "component 'counters' .*KeyError"),
        (
            "counters",
            {"lifetime": {"steps": "7", "aborts": 0, "calls": 1, "sums": {}}},
            "component 'counters' .*counts",
        ),
        (
            "counters",
            {"lifetime": {"steps": 7, "aborts": 0, "calls": 1, "sums": {"returns": [1, 2.0]}}},
            "component 'counters' .*sums",
        ),
        ("policy", {"digest": ...}, "component 'policy' .*KeyError.'digest'"),
        ("generators", {"generators": None}, "component 'generators' of the state"),
        ("generators", {"seed": ...}, "component 'generators' .*KeyError.'seed'"),
    ],
)
def test_a_component_that_lacks_something_changes_nothing(component: str, altered: dict[str, Any], told: str) -> None:
    with collector_of("lanes", longest=50) as collector:
        collector.load(doubled(collector))
        collector.collect(7)
        before = collector.state()
        values = {**before[component].values, **altered}
        odd = Component({key: of for key, of in values.items() if of is not ...}, before[component].arrays)
        with pytest.raises(SettingsError, match=told):
            collector.load_state({**before, component: odd})
        assert {episode.first_step for episode in collector.collect(3).episodes} == {2, 3}


def test_a_version_that_does_not_load_changes_nothing() -> None:
    with collector_of("lanes", policy="tests.producers.policy_zoo:bounded", longest=50) as collector:
        bias = collector.policy.pipeline.weights | {"bias": np.full(2, 101.0, np.float32)}
        version = PolicyRecord(1, bias)
        collector.collect(7)
        before = collector.state()
        described = {"version": 1, "settings": {}, "digest": version.digest.hex()}
        with pytest.raises(PolicyRejectedError, match="a bias above 100"):
            collector.load_state({**before, "policy": Component(described, bias)})
        assert collector.state() == before
        assert {episode.first_step for episode in collector.collect(3).episodes} == {2, 3}


def test_a_generator_of_another_kind_changes_nothing() -> None:
    with collector_of("lanes", generators={"noise": np.random.default_rng(1)}) as saved:
        saved.collect(5)
        state = saved.state()
    with collector_of("lanes", generators={"noise": np.random.Generator(np.random.MT19937(2))}) as collector:
        before = collector.state()
        with pytest.raises(SettingsError, match="not that of one of MT19937"):
            collector.load_state(state)
        assert collector.state() == before


def test_a_state_from_before_any_version_is_for_a_collector_that_has_loaded_none() -> None:
    with collector_of("lanes") as collector:
        state = collector.state()
        collector.load_state(state)
        collector.load(doubled(collector))
        with pytest.raises(PolicyError, match="version 1 acts now: they are not kept; make a new collector"):
            collector.load_state(state)
        assert collector.policy.version == 1


def test_numbers_of_numpy_s_are_saved(tmp_path: Path) -> None:
    with collector_of("lanes", seed=np.int64(SEED)) as saved, collector_of("lanes") as loaded:
        saved.load(PolicyRecord(np.int64(3), numpy_weights(saved)))  # type: ignore[arg-type]  # as users have it
        saved.save(tmp_path / "state")
        loaded.load_state(tmp_path / "state")
        assert loaded.policy.version == 3


@pytest.mark.parametrize("version", [-1, 2**63, True, 1.0, "1"])
def test_a_number_that_no_version_has_is_refused(version: Any) -> None:
    with collector_of("lanes") as collector:
        with pytest.raises(PolicyRejectedError, match=f"policy version {version!r}: a version is an integer"):
            collector.load(PolicyRecord(version, numpy_weights(collector)))
        assert collector.policy.version == 0


def test_a_version_is_saved_as_it_acts_whatever_becomes_of_the_trainer_s_own(tmp_path: Path) -> None:
    with collector_of("lanes") as saved, collector_of("lanes") as loaded:
        trained = {name: value.numpy().copy() for name, value in doubled(saved).items()}
        saved.load(PolicyRecord(1, trained))
        for value in trained.values():
            value.fill(1.0)
        saved.save(tmp_path / "state")
        loaded.load_state(tmp_path / "state")
        assert loaded.policy.digest == saved.policy.digest


def test_a_state_whose_weights_were_altered_is_refused() -> None:
    with collector_of("lanes") as saved:
        saved.load(doubled(saved))
        state = saved.state()
    arrays = {name: value + 1 for name, value in state["policy"].arrays.items()}
    with collector_of("lanes") as loaded:
        before = loaded.policy.digest
        with pytest.raises(PolicyRejectedError, match="its digest is not that of its weights: the state was altered"):
            loaded.load_state({**state, "policy": Component(state["policy"].values, arrays)})
        assert loaded.policy.digest == before
