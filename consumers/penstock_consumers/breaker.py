"""The circuit breaker: where most of what comes is bad, the fault is not the messages'."""

from __future__ import annotations

from collections import deque

from penstock_schemas.errors import BadStreamError

# Verdicts that it remembers, and how many bad ones it takes to trip: a few bad messages at a start are no bad stream.
_WINDOW = 256
_LEAST_BAD = 64


class Breaker:
    """Trips where more than a share of the last messages of a partition were quarantined.

    It decides nothing of what is stored: it stops the consumer before the message that tripped it is judged, and who
    goes on from there, with a larger share or other code, judges as if nothing had been.
    """

    def __init__(self, max_bad_share: float) -> None:
        self._max_bad_share = max_bad_share
        self._bad: deque[bool] = deque(maxlen=_WINDOW)

    def good(self) -> None:
        """A message was valid."""
        self._bad.append(False)

    def bad(self, where: str, why: str) -> None:
        """A message is to be quarantined; raises `BadStreamError` where that is one too many."""
        self._bad.append(True)
        bad = sum(self._bad)
        if bad >= _LEAST_BAD and bad > self._max_bad_share * len(self._bad):
            raise BadStreamError(
                f"{where}: {bad} of the last {len(self._bad)} messages are not valid, the last for: {why}; nothing "
                "after the newest commit was judged; mend the producers or this consumer's settings, or set "
                "--max-bad-share 1 to quarantine them all"
            )
