"""Arrays that are not to be written to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array read-only, itself and not a copy; other views of the same memory stay what they are."""
    array.flags.writeable = False
    return array
