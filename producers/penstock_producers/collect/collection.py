"""What one call collected: as episodes, as tensors over time, as figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from penstock_producers.collect.episode import Episode
from penstock_producers.collect.tensors import tensors_of

if TYPE_CHECKING:
    import torch

    from penstock_producers.collect.episodes import Laid
    from penstock_producers.collect.statistics import Statistics
    from penstock_producers.collect.times import Times
    from penstock_schemas.stream import StreamSpec


class Collection:
    """The steps of one call; it stays as it is, whatever is collected later.

    Attributes:
        spec: what is recorded of a step, and of which spaces it is.
        episodes: by env, and in the order in which they happened; each is made when it is asked for.
        statistics: figures of the call.
    """

    def __init__(self, laid: Laid, times: Times, spec: StreamSpec, statistics: Statistics) -> None:
        self.spec = spec
        self.statistics = statistics
        self.episodes: Sequence[Episode] = _Episodes(laid, spec)
        self._laid = laid
        self._times = times

    def __repr__(self) -> str:
        return f"Collection(steps={self.steps}, episodes={len(self.episodes)})"

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return int(self._laid.steps.sum())

    def tensors(self, device: str | torch.device = "cpu") -> dict[str, Any]:
        """Lay the steps out by time: tensors of shape (T, N, *one item's) on a device, N being the envs.

        In lockstep a time is a vector step. Where an env has no step in it, since it was being reset, was parked or
        down, or since the call began or ended within it, `mask` is False and all else is 0. The keys:

        - `observation`, what was acted on, and `next_observation`, what came of it, an episode's last one where it
          ended: in the structure of the observation space;
        - `action`, as it was drawn, in the structure of the action space;
        - `reward`, `terminated`, `truncated`, `mask`;
        - each extra of the policy by its name, NaN where it has none, or 0 where it is no float;
        - each recorded info as `info.<key>`, that of the observation acted on, 0 where there was none.

        Raises `SettingsError` out of lockstep where envs have different numbers of steps, for text, and where steps of
        aborted episodes were left out.
        """
        return tensors_of(self._laid, self._times, self.spec, device)


class _Episodes(Sequence[Episode]):
    def __init__(self, laid: Laid, spec: StreamSpec) -> None:
        self._laid = laid
        self._spec = spec

    def __len__(self) -> int:
        return len(self._laid)

    @overload
    def __getitem__(self, index: int) -> Episode: ...

    @overload
    def __getitem__(self, index: slice) -> list[Episode]: ...

    def __getitem__(self, index: int | slice) -> Episode | list[Episode]:
        at = range(len(self))[index]
        if isinstance(at, range):
            return [Episode(self._laid, self._spec, one) for one in at]
        return Episode(self._laid, self._spec, at)

    def __repr__(self) -> str:
        return f"<{len(self)} episodes>"
