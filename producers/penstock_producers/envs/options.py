"""The options of a reset: plain JSON, since they are recorded and may travel to another process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock_schemas.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Mapping


def options_to_json(options: Mapping[str, Any] | None, name: str) -> str | None:
    """Write options as they are recorded; envs are given what is read back from that.

    Args:
        options: of a reset; None for none.
        name: of the environment, for errors.

    Raises `EnvError` for what is not plain JSON.
    """
    try:
        return None if options is None else json.dumps(dict(options), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise EnvError(
            f"environment {name}: reset options {options!r} are not plain JSON, so they cannot be recorded: {error}; "
            "use numbers, strings, lists and dicts with string keys"
        ) from error


def options_from_json(text: str | None) -> dict[str, Any] | None:
    """Read what `options_to_json` wrote: a dict of the env's own each time."""
    options: dict[str, Any] | None = None if text is None else json.loads(text)
    return options
