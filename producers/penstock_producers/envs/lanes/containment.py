"""What an env may do wrong, and how often it is made anew before the process gives up."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_producers.contained import told

# The kinds of faults: how the reasons of aborted episodes begin.
RAISED = "env_raised"
HUNG = "env_hung"
DIED = "env_died"
REWARD = "env_reward"
OBSERVATION = "env_observation"
SPACES = "env_spaces"
INFO = "env_info"

_DETAIL_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Containment:
    """How faults of single envs are contained.

    Attributes:
        step_timeout: seconds after which a worker that has not answered is killed. Within a process nothing can end
            an env that hangs.
        max_rebuilds: how often an env is made anew in a row. An episode that ends by itself, or 1,000 steps without
            a fault, gives it the whole budget again.
        backoff: seconds before it is made anew the first time; they double each time in a row, up to 30.
        check_bounds: whether a value outside the bounds of its Box, or a string outside its Text, is a fault. What
            no column could hold always is.
    """

    step_timeout: float = 60.0
    max_rebuilds: int = 10
    backoff: float = 0.1
    check_bounds: bool = True


DEFAULT = Containment()


class Fault(Exception):  # noqa: N818 - it is the reason of an abort, and no error of this process
    """What an env did wrong; it never leaves the lanes but as the reason of an aborted episode."""

    def __init__(self, kind: str, detail: str) -> None:
        # Whatever an exception says, it is stored as UTF-8.
        detail = " ".join(detail.encode(errors="backslashreplace").decode().split())
        self.kind = kind
        self.detail = detail if len(detail) <= _DETAIL_CHARACTERS else f"{detail[: _DETAIL_CHARACTERS - 1]}…"
        super().__init__(f"{kind}: {self.detail}")

    @classmethod
    def raised(cls, error: BaseException, call: str) -> Fault:
        """What a call of the env's raised."""
        return cls(RAISED, f"{call} raised {told(error)}")
