"""One episode, or the part of one that a collection has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_producers.collect.chunks import NONE
from penstock_producers.collect.episodes import ENDED
from penstock_schemas.chunks import Ends
from penstock_schemas.sent import sent_columns
from penstock_schemas.spaces import leaves, unflatten
from penstock_schemas.stream import INFO, METRIC, STATE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock_producers.collect.chunks import Items
    from penstock_producers.collect.episodes import Laid
    from penstock_schemas.columns import Column
    from penstock_schemas.stream import StreamSpec


class Episode:
    """T steps of one episode; every array is a view of its collection.

    Where the episode began in an earlier call, `first_step` is not 0; where it goes on in the next one, `ends` is
    `Ends.OPEN`. `with_lookback()` has the steps before these too, as many as were kept.
    """

    def __init__(self, laid: Laid, spec: StreamSpec, at: int, *, with_lookback: bool = False) -> None:
        self._laid = laid
        self._spec = spec
        self._at = at
        self._with_lookback = with_lookback
        before = int(laid.before[at])
        # The first row that was not given before, and the last.
        self._first, self._last = int(laid.head[at]) + (before > 0), int(laid.head[at + 1]) - 1
        start = int(laid.step[at]) + (0 if with_lookback else before)
        self._steps = slice(start, int(laid.step[at + 1]))
        # Each episode before has one item more.
        self._overlap = slice(start + at, self._steps.stop + at + 1)

    def __repr__(self) -> str:
        return (
            f"Episode(env={self.env}, episode={self.episode}, first_step={self.first_step}, length={self.length}, "
            f"return_={self.return_:g}, ends={self.ends!r})"
        )

    @property
    def env(self) -> int:
        """The index of its env."""
        return int(self._of_rows("env"))

    @property
    def episode(self) -> int:
        """Its number in its env, from 0; those that had no step are not counted."""
        return int(self._of_rows("episode"))

    @property
    def first_step(self) -> int:
        """At which step of the episode these begin."""
        row = self._first if not self._with_lookback else int(self._laid.head[self._at])
        return int(self._laid.chunks.rows["first_step"][row])

    @property
    def lookback(self) -> int:
        """How many steps before those of the call `with_lookback()` has."""
        return int(self._laid.before[self._at])

    def with_lookback(self) -> Episode:
        """Give the same episode with the steps looked back at as its first ones."""
        return Episode(self._laid, self._spec, self._at, with_lookback=True)

    @property
    def length(self) -> int:
        """T."""
        return self._steps.stop - self._steps.start

    @property
    def return_(self) -> float:
        """The sum of the rewards here."""
        return float(self.reward.sum(dtype=np.float64))

    @property
    def is_whole(self) -> bool:
        """Whether all of it is here: it began with a reset, and the env ended it."""
        return self.first_step == 0 and self.continues is None and bool(self.ends & ENDED)

    @property
    def ends(self) -> Ends:
        """How it ends here."""
        return Ends(int(self._of_rows("ends")))

    @property
    def terminated(self) -> bool:
        """Whether the env terminated it."""
        return Ends.TERMINATED in self.ends

    @property
    def truncated(self) -> bool:
        """Whether the env truncated it."""
        return Ends.TRUNCATED in self.ends

    @property
    def abort_reason(self) -> str | None:
        """What ended it, where it was aborted: a kind and after a colon the details; "reset" where that was forced."""
        reason: str | None = self._of_rows("abort_reason")
        return reason

    @property
    def seed(self) -> int | None:
        """With which its env was reset; None where the env has no seeds for episodes."""
        return _number(self._of_rows("seed", first=True))

    @property
    def options(self) -> Mapping[str, Any] | None:
        """With which its env was reset."""
        text: str | None = self._of_rows("reset_options", first=True)
        return None if text is None else json.loads(text)

    @property
    def continues(self) -> int | None:
        """The number of the episode that was cut where this one begins; None where it began with a reset."""
        return _number(self._of_rows("continues", first=True))

    @property
    def observation(self) -> Any:
        """In the structure of the observation space: arrays of shape (T + 1, *leaf), in dicts and tuples as it is."""
        return unflatten(self._spec.observation, self._leaves(self._spec.observation_columns, self._spec.observation))

    @property
    def action(self) -> Any:
        """As it was drawn, in the structure of the action space: arrays of shape (T, *leaf)."""
        return unflatten(self._spec.action, self._leaves(self._spec.action_columns, self._spec.action))

    @property
    def action_sent(self) -> Any:
        """As the env was sent it, in the structure of the action space: arrays of shape (T, *leaf)."""
        drawn = self._leaves(self._spec.action_columns, self._spec.action)
        recorded = {extra.name for extra in self._spec.extras}
        sent = [
            self._values(column) if column.name in recorded else leaf
            for column, leaf in zip(sent_columns(self._spec.action), drawn, strict=True)
        ]
        return unflatten(self._spec.action, sent)

    @property
    def reward(self) -> NDArray[Any]:
        """Shape (T,)."""
        return self._values(self._spec.reward_column)

    @property
    def extras(self) -> dict[str, NDArray[Any]]:
        """What the policy recorded beside the action, by name, each of shape (T, *its own).

        A nullable one is a masked array, masked at the steps at which there was none.
        """
        return {extra.name: (self._masked if extra.nullable else self._values)(extra) for extra in self._spec.extras}

    @property
    def infos(self) -> dict[str, np.ma.MaskedArray[Any, Any]]:
        """The recorded infos by key, one with each observation, shape (T + 1, *its own), masked where none was."""
        return {column.name.removeprefix(INFO): self._masked(column) for column in self._spec.infos}

    @property
    def metrics(self) -> dict[str, float | None]:
        """What callbacks measured, by name; None where they did not, or where the env has not ended the episode."""
        found = {column.name: float(self._of_rows(column.name)) for column in self._spec.metric_columns}
        return {name.removeprefix(METRIC): None if np.isnan(value) else value for name, value in found.items()}

    @property
    def policy_version(self) -> NDArray[np.int64]:
        """The version that chose each action, shape (T,)."""
        return self._laid.chunks.steps["policy_version"].values[self._steps]

    @property
    def exploration(self) -> NDArray[np.uint8]:
        """How each action was chosen, as `penstock_schemas.chunks.Exploration`, shape (T,)."""
        return self._laid.chunks.steps["exploration"].values[self._steps]

    @property
    def chunk_first_step(self) -> NDArray[np.int64]:
        """The step at which each of the C chunks begins, shape (C,): where another policy acts a new one begins.

        Those of the steps looked back at are left out, here and below.
        """
        return self._of_chunks("first_step")

    @property
    def chunk_state(self) -> dict[str, NDArray[Any]]:
        """The policy's recurrent state before the first step of each chunk, by name, each of shape (C, *its own)."""
        return {state.name.removeprefix(STATE): self._of_chunks(state.name) for state in self._spec.states}

    @property
    def policy_digest(self) -> tuple[bytes, ...]:
        """The digest of the weights that acted in each chunk, C items."""
        return tuple(self._of_chunks("policy_digest").tolist())

    def _of_rows(self, name: str, *, first: bool = False) -> Any:
        return self._laid.chunks.rows[name][self._first if first else self._last]

    def _of_chunks(self, name: str) -> NDArray[Any]:
        return self._laid.chunks.rows[name][self._first : self._last + 1]

    def _items(self, column: Column) -> tuple[Items, slice]:
        if column.overlap:
            return self._laid.chunks.overlap[column.name], self._overlap
        return self._laid.chunks.steps[column.name], self._steps

    def _values(self, column: Column) -> NDArray[Any]:
        items, at = self._items(column)
        return items.values[at]

    def _masked(self, column: Column) -> np.ma.MaskedArray[Any, Any]:
        items, at = self._items(column)
        values = items.values[at]
        absent = np.zeros(len(values), np.bool_) if items.valid is None else ~items.valid[at]
        mask = np.broadcast_to(absent.reshape(-1, *(1,) * (values.ndim - 1)), values.shape)
        return np.ma.MaskedArray(values, mask=mask.copy())

    def _leaves(self, columns: tuple[Column, ...], space: Any) -> list[NDArray[Any]]:
        dtypes = [leaf.space.dtype for leaf in leaves(space)]
        return [self._values(column).astype(of, copy=False) for column, of in zip(columns, dtypes, strict=True)]


def _number(value: Any) -> int | None:
    return None if value == NONE else int(value)
