"""The envs from which something is collected, where others are stepped beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_producers.collect.answers import only

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from penstock_producers.envs import Answer
    from penstock_producers.rollout import Observer


class Share:
    """Leaves out of every answer what is not collected, so that callbacks see what is; an `Observer` of a rollout.

    Args:
        observer: is shown what is left.

    Attributes:
        envs: those from which something is collected, shape (N,); None for all.
    """

    def __init__(self, observer: Observer | None) -> None:
        self.envs: NDArray[np.bool_] | None = None
        self._observer = observer

    def see(self, answer: Answer) -> Answer:
        """Give the rows and aborts of these envs, with the metrics of the episodes that end in them."""
        if self.envs is not None:
            answer = only(answer, self.envs)
        return answer if self._observer is None else self._observer.see(answer)
