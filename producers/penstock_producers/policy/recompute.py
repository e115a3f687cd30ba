"""Computing again what a policy answered, from what is stored of chunks: many at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock_producers.policy.base import Inputs
from penstock_producers.policy.make import make_policy
from penstock_schemas.chunks import Exploration
from penstock_schemas.errors import PolicyRejectedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock_producers.envs.rows import Info
    from penstock_producers.policy.base import Policy, Recomputed
    from penstock_schemas.columns import Column
    from penstock_schemas.policies import PolicyRecord
    from penstock_schemas.spaces import Leaves, Space

# So many rows a forward: beyond it nothing is gained, and what a network makes of images takes memory.
_ROWS = 1024


class Answers(NamedTuple):
    """What a policy answered in C chunks of S steps in all."""

    extras: dict[str, NDArray[Any]]
    """By the names of the policy's extras, (S, *shape): "log_prob", "value" and "parameters", as far as it has them."""
    absent: frozenset[str]
    """Those of the extras that the policy has no value for where it chooses so."""
    parameters: NDArray[np.float32]
    """(S, k), of what the actions were drawn from."""
    action: Leaves
    """(S, *shape) what is chosen where nothing is drawn; none but where exploration is OFF."""
    final: NDArray[Any] | None
    """(F,) the values of the observations that ended an episode; None where there were none to value."""
    state: tuple[NDArray[Any], ...]
    """The recurrent state behind the last step of each chunk, an array (C, *shape) for each of the policy's."""


class Recomputer:
    """A policy made again as a stream describes it, with whichever version's weights are asked for.

    Args:
        described: {"name", "arguments", "behaviour", "connectors"}, as for `make_policy`.
        observation: the envs' observation space.
        action: the envs' action space.
        infos: the columns of the recorded infos.
        device: where the policy computes.

    Raises what `make_policy` raises.
    """

    def __init__(
        self,
        described: Mapping[str, Any],
        observation: Space,
        action: Space,
        infos: Sequence[Column],
        *,
        device: str = "cpu",
    ) -> None:
        make = partial(
            make_policy,
            described["name"],
            observation,
            action,
            arguments=described.get("arguments"),
            behaviour=described.get("behaviour"),
            connectors=described.get("connectors", ()),
            infos=infos,
            # Nothing is drawn.
            rng=np.random.default_rng(0),
            device=device,
        )
        # Version 0 is what a policy is made with: one is kept as it was made.
        self._first, self._later = make(), make()
        self._acting: Policy = self._first

    def check(self, version: int, digest: bytes, record: PolicyRecord | None) -> None:
        """Raise `PolicyRejectedError` unless `use` would take a version; None for version 0, which has no record."""
        if record is not None:
            self._later.check(record)
        elif digest != self._first.digest:
            raise PolicyRejectedError(
                "digest",
                f"policy version {version}: its digest is {digest.hex()}, that of the policy made again is "
                f"{self._first.digest.hex()}: its factory, or the version of torch, is not the one that acted",
            )

    def use(self, record: PolicyRecord | None) -> None:
        """Answer as a version did, None for version 0; raises `PolicyRejectedError`."""
        if record is None:
            self._acting = self._first
        else:
            self._later.load(record)
            self._acting = self._later

    def answer(
        self,
        exploration: int,
        length: NDArray[np.int64],
        inputs: tuple[Leaves, tuple[Info, ...]],
        state: tuple[NDArray[Any], ...],
        action: Leaves,
        ended: tuple[NDArray[np.intp], tuple[Leaves, tuple[Info, ...]]],
    ) -> Answers:
        """Compute again what was recorded of C chunks of S steps in all, end to end.

        Args:
            exploration: how the actions were chosen.
            length: (C,) the steps of each chunk.
            inputs: (S, *shape) the observations as the policy saw them, a leaf each, and the infos that came with them.
            state: (C, *shape) the recurrent state before each chunk.
            action: (S, *shape) the actions as they were drawn, in the dtypes in which they are recorded.
            ended: which F chunks ended an episode, and the inputs (F, *shape) that came last.
        """
        policy = self._acting
        policy.exploration = Exploration(exploration)
        seen = Inputs(*inputs, ())
        acted, greedy, state = (_stepped if policy.states else _at_once)(policy, seen, length, state)
        names = {column.name for column in policy.extras}
        extras: dict[str, NDArray[Any]] = {}
        if "log_prob" in names:
            extras["log_prob"] = policy.log_prob(acted.parameters, action)
        if "parameters" in names:
            extras["parameters"] = acted.parameters
        if "value" in names and acted.value is not None:
            extras["value"] = acted.value
        which, last = ended
        final = None
        if policy.recording.final is not None and len(which):
            last_inputs = Inputs(*last, tuple(kept[which] for kept in state))
            final = np.concatenate([policy.value(_rows(last_inputs, some)) for some in _blocks(len(which))])
        return Answers(extras, policy.absent, acted.parameters, greedy[: len(action)], final, state)

    def log_prob(self, parameters: NDArray[np.float32], action: Leaves) -> NDArray[np.float32]:
        """Give the log-probabilities (S,) of actions that were drawn from parameters (S, k)."""
        return self._acting.log_prob(parameters, action)


def _at_once(
    policy: Policy, inputs: Inputs, length: NDArray[np.int64], state: tuple[NDArray[Any], ...]
) -> tuple[Recomputed, Leaves, tuple[NDArray[Any], ...]]:
    """Answer all steps, which do not depend on each other."""
    parts = [_answered(policy, _rows(inputs, some)) for some in _blocks(int(length.sum()))]
    return *_joined(parts), state


def _stepped(
    policy: Policy, inputs: Inputs, length: NDArray[np.int64], state: tuple[NDArray[Any], ...]
) -> tuple[Recomputed, Leaves, tuple[NDArray[Any], ...]]:
    """Answer the first step of all chunks, then the second of those that have one, and so on."""
    # The longest first: those that go on are the first few then.
    order = np.argsort(-length, kind="stable")
    first = (np.cumsum(length) - length)[order]
    going = [kept[order] for kept in state]
    # How many chunks have more steps than each step's number.
    count = np.searchsorted(-length[order], -np.arange(length.max(initial=0)), side="left")
    parts, places = [], []
    for step, n in enumerate(count.tolist()):
        rows = first[:n] + step
        for some in _blocks(n):
            at = rows[some]
            before = tuple(kept[some] for kept in going)
            part = _answered(policy, _rows(inputs, at)._replace(state=before))
            for kept, after in zip(going, part[0].state, strict=True):
                kept[some] = after
            parts.append(part)
            places.append(at)
    back = np.argsort(np.concatenate(places))
    acted, greedy = _joined(parts)
    behind = tuple(np.empty_like(kept) for kept in going)
    for kept, sorted_ in zip(behind, going, strict=True):
        kept[order] = sorted_
    in_order = acted._replace(
        parameters=acted.parameters[back], value=None if acted.value is None else acted.value[back]
    )
    return in_order, tuple(leaf[back] for leaf in greedy), behind


def _answered(policy: Policy, inputs: Inputs) -> tuple[Recomputed, Leaves]:
    """Answer some rows; with what `act` gives of them where nothing is drawn."""
    # What a policy answers may be its to overwrite when it is called again.
    drawn = policy.act(inputs).drawn if policy.exploration is Exploration.OFF else ()
    greedy = tuple(leaf.copy() for leaf in drawn)
    part = policy.recompute(inputs, policy.exploration)
    value = None if part.value is None else part.value.copy()
    return part._replace(parameters=part.parameters.copy(), value=value), greedy


def _joined(parts: Sequence[tuple[Recomputed, Leaves]]) -> tuple[Recomputed, Leaves]:
    values = [part.value for part, _ in parts if part.value is not None]
    joined = parts[0][0]._replace(
        parameters=np.concatenate([part.parameters for part, _ in parts]),
        value=np.concatenate(values) if values else None,
    )
    return joined, tuple(map(np.concatenate, zip(*(greedy for _, greedy in parts), strict=True)))


def _rows(inputs: Inputs, rows: Any) -> Inputs:
    return Inputs(
        tuple(leaf[rows] for leaf in inputs.observation),
        tuple((values[rows], valid[rows]) for values, valid in inputs.infos),
        tuple(kept[rows] for kept in inputs.state),
    )


def _blocks(n: int) -> list[slice]:
    return [slice(begin, min(begin + _ROWS, n)) for begin in range(0, n, _ROWS)]
