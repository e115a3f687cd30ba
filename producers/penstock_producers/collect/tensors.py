"""Steps laid out by time, for learners that go by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock_schemas.chunks import Ends
from penstock_schemas.errors import SettingsError
from penstock_schemas.spaces import leaves, unflatten

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock_producers.collect.chunks import Items
    from penstock_producers.collect.episodes import Laid
    from penstock_producers.collect.times import Times
    from penstock_schemas.columns import Column
    from penstock_schemas.spaces import Space
    from penstock_schemas.stream import StreamSpec


def tensors_of(laid: Laid, times: Times, spec: StreamSpec, device: str | torch.device) -> dict[str, Any]:
    """See `Collection.tensors`."""
    texts = [column.name for column in spec.columns if column.is_text]
    if texts:
        raise SettingsError(f"tensors of {', '.join(texts)}: text has none; use the episodes")
    mask = times.mask()
    length = np.diff(laid.step)
    place = np.arange(laid.step[-1]) - np.repeat(laid.step[:-1], length)
    now = np.flatnonzero(place >= np.repeat(laid.before, length))
    if len(now) != mask.sum():
        raise SettingsError(
            f"tensors of {len(now)} steps of whole episodes, where envs took {mask.sum()}: those of aborted episodes "
            "were left out, so there is no common time; use the episodes"
        )
    # Observation i is that before step i, but for one more in each episode before.
    acted_on = now + np.repeat(np.arange(len(laid)), length)[now]
    layout = _Layout(mask, device)

    def tree(space: Space, columns: tuple[Column, ...], lists: dict[str, Items], at: NDArray[np.intp]) -> Any:
        pairs = zip(columns, leaves(space), strict=True)
        return unflatten(
            space,
            [layout(lists[c.name].values[at].astype(leaf.space.dtype, copy=False)) for c, leaf in pairs],
        )

    of_steps, overlap = laid.chunks.steps, laid.chunks.overlap
    made = {
        "observation": tree(spec.observation, spec.observation_columns, overlap, acted_on),
        "next_observation": tree(spec.observation, spec.observation_columns, overlap, acted_on + 1),
        "action": tree(spec.action, spec.action_columns, of_steps, now),
        "reward": layout(of_steps["reward"].values[now]),
        "mask": torch.from_numpy(mask).to(device),
    }
    ends = laid.chunks.rows["ends"][laid.last]
    last = laid.step[1:] - 1
    for name, way in (("terminated", Ends.TERMINATED), ("truncated", Ends.TRUNCATED)):
        ended = np.zeros(laid.step[-1], np.bool_)
        ended[last[(ends & way.value) != 0]] = True
        made[name] = layout(ended[now])
    for column in spec.extras:
        missing = np.nan if column.dtype.kind == "f" else 0
        made[column.name] = layout(_filled(of_steps[column.name], now, missing))
    for column in spec.infos:
        made[column.name] = layout(_filled(overlap[column.name], acted_on, 0))
    return made


class _Layout:
    """Puts steps, which come env by env, in their places."""

    def __init__(self, mask: NDArray[np.bool_], device: str | torch.device) -> None:
        self._by_env = mask.T
        self._whole = bool(mask.all())
        self._device = device

    def __call__(self, values: NDArray[Any]) -> torch.Tensor:
        shape = (*self._by_env.shape, *values.shape[1:])
        if self._whole:
            placed = values.reshape(shape)
        else:
            placed = np.zeros(shape, values.dtype)
            placed[self._by_env] = values
        by_time = np.ascontiguousarray(placed.swapaxes(0, 1))
        return torch.from_numpy(by_time).to(self._device)


def _filled(items: Items, at: NDArray[np.intp], missing: float) -> NDArray[Any]:
    values = items.values[at]
    if items.valid is not None:
        values[~items.valid[at]] = missing
    return values
