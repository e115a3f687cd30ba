"""Values of another dtype than their column's, cast where they stay what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def cast(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Cast numbers; None where one of them would become another.

    A float may be rounded to a narrower float, as gymnasium's spaces take it, but is infinite only where it was.
    """
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):
        made = values.astype(dtype)
        if values.dtype.kind == dtype.kind == "f":
            same = np.array_equal(np.isinf(made), np.isinf(values))
        else:
            # Cast back, an integer that went round its type is what it was: but not its sign in between.
            same = np.array_equal(made.astype(values.dtype), values) and np.array_equal(made < 0, values < 0)
    return made if same else None
