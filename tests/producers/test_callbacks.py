from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_producers.callbacks import CallbackList, CallbackRunner, Callbacks, attach, make_callbacks
from penstock_producers.envs import Abort, CanonicalEnv
from penstock_schemas.chunks import Ends
from penstock_schemas.errors import EnvError, SettingsError
from tests.producers.callback_zoo import ZOO, Climber, Ladder, Play, Witness, in_process
from tests.producers.env_zoo import CountingVectorEnv
from tests.producers.recorder import MODES, Sent, answers, nested_spec, spec_of

if TYPE_CHECKING:
    from penstock_producers.callbacks import EndedEpisode
    from penstock_producers.envs import Rows


class Shown:
    """Stands for the envs: all that a runner asks of them."""

    def __init__(self, num_envs: int, infos: Any) -> None:
        self.num_envs, self.infos = num_envs, infos


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(MODES), st.integers(1, 5), st.integers(0, 1 << 32), st.booleans())
def test_callbacks_see_every_step_once_and_every_episode_whole_in_every_order_of_rows(
    mode: str, n: int, seed: int, nested: bool
) -> None:
    spec = nested_spec() if nested else spec_of()
    witness, twin = Witness(), _Twin()
    runner = CallbackRunner(CallbackList([witness]), Shown(n, spec.infos))  # type: ignore[arg-type]  # all that it asks
    made = answers(spec, n, mode, np.random.default_rng(seed), end=0.3, fault=0.1)
    for answer in (answer for answer, _ in zip(made, range(60), strict=False) if not isinstance(answer, Sent)):
        seen = runner.see(answer)
        measured = twin.rows(answer.steps)
        if seen.steps is not None and seen.steps.metrics is not None:
            np.testing.assert_array_equal(seen.steps.metrics, measured)
        else:
            assert np.isnan(measured).all()
        for abort in answer.aborts:
            twin.abort(abort)
        twin.rows(answer.resets)
    # Which env of an answer is told of first is not promised.
    for env in range(n):
        assert [_told(call) for call in witness.calls if call[1] == env] == [
            call for call in twin.calls if call[1] == env
        ]
    assert runner.take()["score"].tolist() == twin.scores
    assert runner.take()["score"].tolist() == []


class _Twin:
    """What is to be told, one row at a time."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.scores: list[float] = []
        self.open: dict[int, tuple[float, int]] = {}

    def rows(self, rows: Rows | None) -> Any:
        measured = np.full((0 if rows is None else len(rows.env), 2), np.nan)
        for at, env in enumerate([] if rows is None else rows.env.tolist()):
            assert rows is not None
            if rows.first[at]:
                self.open[env] = 0.0, 0
                self.calls.append(("start", env))
                continue
            reward = float(rows.reward[at])
            total, length = self.open[env] = self.open[env][0] + reward, self.open[env][1] + 1
            self.calls.append(("step", env, reward))
            if flags := int(rows.terminated[at]) + 2 * int(rows.truncated[at]):
                self.calls.append(("end", env, total, length, flags, None))
                measured[at] = 10 * total, length if length > 1 else np.nan
                self.scores.append(10 * total)
                del self.open[env]
        return measured

    def abort(self, abort: Abort) -> None:
        if abort.env in self.open:
            self.calls.append(("end", abort.env, *self.open.pop(abort.env), Ends.ABORTED, abort.reason))


def _told(call: Any) -> Any:
    match call:
        case ("start", env, _):
            return ("start", env)
        case ("end", env, ended):
            return ("end", env, *ended[1:5])
    return call


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_metrics_stand_in_the_row_that_ends_the_episode_whatever_the_autoreset_mode(mode: str) -> None:
    witness = Witness()
    with closing(CanonicalEnv(CountingVectorEnv(3, mode))) as envs:
        play = Play(envs, witness)
        play.until(lambda: len(witness.of("end")) > 12)
        rows = play.rows()
        assert len(witness.of("end")) == sum(row["ends"] != Ends.OPEN for row in rows)
        for row in rows:
            if row["ends"] == Ends.OPEN:
                assert (row["metric.score"], row["metric.long"]) == (None, None)
            else:
                assert row["metric.score"] == 10 * sum(row["reward"])
                assert row["metric.long"] == (len(row["reward"]) if len(row["reward"]) > 1 else None)


def test_an_ended_episode_tells_how_it_began_and_its_last_infos_and_an_aborted_one_why() -> None:
    witness = Witness()
    with closing(in_process(faults=True)) as envs:
        play = Play(envs, Climber(), witness)
        play.until(lambda: len([end for _, end in witness.of("end") if end.abort_reason]) >= 2)
        rows = [row for row in play.rows() if row["ends"] != Ends.OPEN]
    ends = [end for _, end in witness.of("end")]
    whole = [end for end in ends if end.abort_reason is None]
    assert all(end.options == {"level": end.length} == end.infos and end.seed is not None for end in whole)
    aborted = [end for end in ends if end.abort_reason is not None]
    assert {(end.env, end.ends, end.abort_reason) for end in aborted} == {
        (1, Ends.ABORTED, "env_raised: step() raised RuntimeError: a rung is missing")
    }
    assert all(end.infos == {} and end.length == end.episode_return == 1 for end in aborted)
    # What was measured of an aborted episode is nobody's.
    assert all(row["metric.score"] is None for row in rows if row["ends"] == Ends.ABORTED)
    assert all(begun.infos == begun.options for _, begun in witness.of("start"))
    assert len({begun.seed for _, begun in witness.of("start")}) == len(witness.of("start"))


def test_an_abort_is_told_once_and_only_of_an_open_episode() -> None:
    witness = Witness()
    with closing(in_process(1)) as envs:
        play = Play(envs, witness)
        aborted = play.answer._replace(steps=None, resets=None, aborts=(Abort(0, "reset"),))
        play.take(aborted)
        play.take(aborted)
    assert [end[1:5] for _, end in witness.of("end")] == [(0.0, 0, Ends.ABORTED, "reset")]


def test_a_callback_may_keep_the_infos_that_it_is_told() -> None:
    class Note(Callbacks):
        kept: Any = None

        def on_episode_end(self, ended: EndedEpisode) -> None:
            self.kept = ended.infos["level"]

    spec, note = nested_spec(), Note()
    column = spec.infos[0]
    with closing(in_process(1)) as envs:
        runner = CallbackRunner(CallbackList([note]), envs)
        answer = envs.reset()
        runner.see(answer)
        envs.send(answer.ready, (np.zeros(1, np.int64),))
        steps = envs.recv().steps
        assert steps is not None
        values = np.array([[3, 4]], column.dtype)
        runner.see(answer._replace(steps=steps._replace(infos=((values, np.array([True])),)), resets=None))
        values[:] = 0
    assert note.kept.tolist() == [3, 4]


def test_without_an_override_there_is_no_runner() -> None:
    class OnlyCreated(Callbacks):
        envs: Any = None

        def on_envs_created(self, envs: Any) -> None:
            self.envs = envs

    created = OnlyCreated()
    with closing(in_process()) as envs:
        assert attach(CallbackList(), envs) is None
        assert attach(CallbackList([Callbacks(), created]), envs) is None
        assert created.envs is envs
        assert envs.before_reset is None


def test_only_what_is_overridden_is_called() -> None:
    class Steps(Callbacks):
        seen = 0

        def on_step(self, steps: Any) -> None:
            self.seen += len(steps.env)

    callbacks = CallbackList([Steps(), Climber(), Steps()])
    assert [len(callbacks.overriding(hook)) for hook in ("on_step", "on_reset", "on_fragment_end")] == [2, 1, 0]
    steps = Steps()
    with closing(in_process()) as envs:
        play = Play(envs, steps)
        for _ in range(5):
            play.step()
        assert play.answer.steps is not None
        assert play.answer.steps.metrics is None
    assert steps.seen == 15


def test_a_fragments_end_is_told() -> None:
    class Ends_(Callbacks):  # noqa: N801 - the plain name is taken
        steps = 0

        def on_fragment_end(self, fragment: Any) -> None:
            self.steps += fragment.steps

    ends = Ends_()
    with closing(in_process()) as envs:
        play = Play(envs, ends)
        play.step()
        assert play.runner is not None
        play.runner.closed(play.fragment.close())
    assert ends.steps == 3


def test_metrics_of_several_callbacks_stand_side_by_side() -> None:
    class Other(Callbacks):
        metrics = ("won",)

        def on_episode_end(self, ended: EndedEpisode) -> dict[str, Any]:
            return {"won": ended.env == 0}

    with closing(in_process(2)) as envs:
        play = Play(envs, Witness(), Other())
        play.step()
        assert play.answer.steps is not None
        np.testing.assert_array_equal(play.answer.steps.metrics, [[10, np.nan, 1], [10, np.nan, 0]])
        assert play.runner is not None
        taken = play.runner.take()
    assert {name: values.tolist() for name, values in taken.items()} == {"score": [10, 10], "long": [], "won": [1, 0]}


def test_two_callbacks_with_one_metric_are_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"'score'.*callback Witness and callback Witness"):
        CallbackList([Witness(), Witness()])


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        (5, "no tuple of names"),
        ("score", "no tuple of names"),
        ((1,), "no tuple of names"),
        (("a", "a"), "each name once"),
    ],
)
def test_metrics_that_are_no_names_are_refused(metrics: Any, told: str) -> None:
    witness = Witness()
    witness.metrics = metrics
    with pytest.raises(SettingsError, match=told):
        CallbackList([witness])


def test_a_metric_that_nothing_measures_is_refused() -> None:
    class Idle(Callbacks):
        metrics = ("score",)

    with pytest.raises(SettingsError, match=r"Idle.*override it"):
        CallbackList([Idle()])
    with pytest.raises(SettingsError, match="no callback"):
        CallbackList([object()])  # type: ignore[list-item]  # that is the test


@pytest.mark.parametrize(
    ("measured", "told"),
    [
        ({"scor": 1.0}, r"measured \['scor'\], but its metrics are \['score', 'long'\]"),
        ({"score": "much"}, "'much' as 'score', a str; give a number"),
        ({"score": None}, "None as 'score'"),
        ({"score": np.zeros(2)}, "as 'score', a ndarray"),
        ({"score": 10**400}, "as 'score' what float.. does not take: int too large to convert to float; give a"),
        (3.0, r"on_episode_end\(\) returned 3.0"),
    ],
)
def test_what_is_measured_wrongly_is_an_error_that_loses_nothing_that_was_recorded(measured: Any, told: str) -> None:
    class Wrong(Witness):
        def on_episode_end(self, ended: EndedEpisode) -> Any:
            return super().on_episode_end(ended) if ended.length == 1 else measured

    with closing(in_process(1)) as envs:
        play = Play(envs, Climber(), Wrong())
        with pytest.raises(EnvError, match=f"callback .*Wrong: .*{told}"):
            play.until(lambda: False)
        rows = play.rows()
    assert [(row["ends"], len(row["reward"]), row["metric.score"]) for row in rows] == [
        (Ends.TRUNCATED, 1, 10.0),
        (Ends.OPEN, 1, None),
    ]


@pytest.mark.parametrize("value", [1, True, np.float32(1), np.int8(1), np.True_])
def test_numbers_of_every_kind_are_measured(value: Any) -> None:
    class Kind(Callbacks):
        metrics = ("score",)

        def on_episode_end(self, ended: EndedEpisode) -> dict[str, Any]:
            return {"score": value}

    with closing(in_process(1)) as envs:
        play = Play(envs, Kind())
        play.step()
        assert play.rows()[0]["metric.score"] == 1.0


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit])
@pytest.mark.parametrize("hook", ["on_envs_created", "on_reset", "on_episode_start", "on_step", "on_episode_end"])
def test_what_a_callback_raises_is_told_with_its_name(hook: str, kind: type[BaseException]) -> None:
    def fail(*_: Any) -> None:
        raise kind("by zero")

    fail.__name__ = hook
    broken = type("Broken", (Callbacks,), {hook: fail})()
    told = rf"callback Broken: {hook}\(\) raised {kind.__name__}: by zero; mend the callback"
    with closing(in_process()) as envs, pytest.raises(EnvError, match=told) as raised:
        Play(envs, broken).until(lambda: False)
    assert isinstance(raised.value.__cause__, kind)


def test_callbacks_are_made_by_name() -> None:
    made = make_callbacks(
        [{"name": f"{ZOO}:Climber", "arguments": {"highest": 2}}, json.loads(f'{{"name": "{ZOO}:Witness"}}')]
    )
    climber, witness = made.callbacks
    assert isinstance(climber, Climber)
    assert climber.highest == 2
    assert isinstance(witness, Witness)
    assert made.metrics == ("score", "long")


@pytest.mark.parametrize(
    ("described", "told"),
    [
        ({"name": "Climber"}, "'Climber': not of the form module:factory"),
        ({"name": f"{ZOO}:Climbr"}, "Climbr'.*cannot be imported: AttributeError"),
        ({"name": "no_such_module:Climber"}, "cannot be imported: ModuleNotFoundError"),
        ({"name": f"{ZOO}:Climber", "arguments": {"low": 1}}, "cannot be made with {'low': 1}: TypeError"),
        ({"name": f"{ZOO}:{Ladder.__name__}", "arguments": {"env_index": 0}}, "returned a Ladder; derive it from"),
        ({"name": f"{ZOO}:Climber", "kwargs": {}}, "give {"),
        ({"arguments": {}}, "give {"),
    ],
)
def test_callbacks_that_cannot_be_made_are_refused_by_name(described: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        make_callbacks([described])
