"""Several callbacks side by side, in memory or by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock_producers.callbacks.base import Callbacks
from penstock_producers.contained import CONTAINED, told
from penstock_schemas.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class CallbackList:
    """Callbacks that are called in this order.

    Raises `SettingsError` for what is no `Callbacks`, for a metric that two have, and for one that nothing measures.

    Attributes:
        callbacks: the callbacks.
        metrics: the names of the metrics of all, side by side.
    """

    def __init__(self, callbacks: Iterable[Callbacks] = ()) -> None:
        self.callbacks = tuple(callbacks)
        owners: dict[str, Callbacks] = {}
        for callback in self.callbacks:
            for metric in _metrics_of(callback):
                other = owners.setdefault(metric, callback)
                if other is not callback:
                    raise SettingsError(
                        f"metric {metric!r}: both {name_of(other)} and {name_of(callback)} measure it; rename one"
                    )
        self.metrics: tuple[str, ...] = tuple(owners)

    def overriding(self, hook: str) -> tuple[Callbacks, ...]:
        """The callbacks that override a method, in their order."""
        return tuple(callback for callback in self.callbacks if _overrides(callback, hook))


def make_callbacks(described: Iterable[Mapping[str, Any]]) -> CallbackList:
    """Make callbacks by name, each described as {"name": "module:factory", "arguments": {…}}.

    A factory, which may be a class, is called with **arguments and returns a `Callbacks`. Raises `SettingsError` where
    one cannot be made.
    """
    return CallbackList([_make(one) for one in described])


def name_of(callback: Callbacks) -> str:
    """What errors call a callback."""
    return f"callback {type(callback).__qualname__}"


def _overrides(callback: Callbacks, hook: str) -> bool:
    return getattr(type(callback), hook) is not getattr(Callbacks, hook)


def _metrics_of(callback: Callbacks) -> tuple[str, ...]:
    if not isinstance(callback, Callbacks):
        raise SettingsError(f"{callback!r} is no callback; derive from penstock_producers.callbacks.Callbacks")
    metrics: Any = callback.metrics
    if not isinstance(metrics, tuple | list) or not all(isinstance(metric, str) and metric for metric in metrics):
        raise SettingsError(f"{name_of(callback)}: metrics {metrics!r} are no tuple of names")
    if len(set(metrics)) < len(metrics):
        raise SettingsError(f"{name_of(callback)}: metrics {metrics!r}: each name once")
    if metrics and not _overrides(callback, "on_episode_end"):
        raise SettingsError(f"{name_of(callback)}: metrics {metrics!r} are measured by on_episode_end; override it")
    return tuple(metrics)


def _make(described: Mapping[str, Any]) -> Callbacks:
    if not described.keys() <= {"name", "arguments"} or "name" not in described:
        raise SettingsError(f'callback {dict(described)}: give {{"name": "module:factory", "arguments": {{…}}}}')
    name, arguments = described["name"], described.get("arguments", {})
    module, colon, attribute = str(name).partition(":")
    if not colon:
        raise SettingsError(f"callback {name!r}: not of the form module:factory")
    try:
        factory = getattr(import_module(module), attribute)
    except CONTAINED as error:
        raise SettingsError(f"callback {name!r}: it cannot be imported: {told(error)}") from error
    try:
        made = factory(**arguments)
    except CONTAINED as error:
        raise SettingsError(f"callback {name!r}: it cannot be made with {arguments}: {told(error)}") from error
    if not isinstance(made, Callbacks):
        raise SettingsError(
            f"callback {name!r}: the factory returned a {type(made).__name__}; derive it from "
            "penstock_producers.callbacks.Callbacks"
        )
    return made
