"""What goes wrong when: a schedule of faults, all of it from one seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tests.chaos.bucket import Trouble

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BROKER, ROGUE = "broker", "rogue"
SESSION_SECONDS = 6.0
# How much of a victim's time its faults take, at most; the rest it works.
_BUSY_SHARE = 0.6
_AHEAD = (-3600.0, 0.0, 0.0, 3600.0)


class Act(StrEnum):
    """What is done to a process, or by the rogue; what is done to a store is a `Trouble`."""

    KILL = "SIGKILL"
    TERM = "SIGTERM"
    ZOMBIE = "SIGSTOP past the session"
    PAUSE = "SIGSTOP"
    JOIN = "added and taken away"
    COPY = "copies"
    DELAY = "late copies"
    POISON = "poison"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `at` seconds after the beginning, for `seconds`: how long the victim is down, stopped, or there."""

    kind: Act | Trouble
    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """What happens to each victim in what order; no two faults of one victim overlap.

    `ahead` is how many seconds each consumer's wall clock is ahead; `static` is whether consumers keep their place in
    the group over a restart.
    """

    seed: int
    seconds: float
    producers: int
    consumers: int
    extras: int
    kills: int
    faults: Mapping[str, Sequence[Fault]]
    ahead: Mapping[str, float]
    static: bool


# What may happen to a victim, how likely, and for how long.
_Menu = dict["Act | Trouble", tuple[float, tuple[float, float]]]
_PRODUCER: _Menu = {
    Act.KILL: (3, (0.2, 3.0)),
    Act.TERM: (1, (0.2, 2.0)),
    Act.PAUSE: (2, (1.0, 9.0)),
}
_CONSUMER: _Menu = {
    Act.KILL: (3, (0.2, 3.0)),
    Act.TERM: (1, (0.2, 2.0)),
    Act.ZOMBIE: (2, (SESSION_SECONDS + 1.0, SESSION_SECONDS + 4.0)),
    Act.PAUSE: (1, (0.5, 2.0)),
    **dict.fromkeys(Trouble, (0.8, (1.0, 4.0))),
}
_EXTRA: _Menu = {Act.JOIN: (1, (5.0, 12.0))}
_BROKER: _Menu = {
    Act.KILL: (2, (0.2, 2.0)),
    Act.TERM: (1, (0.2, 2.0)),
    Act.PAUSE: (1, (1.0, 4.0)),
}
_ROGUE: _Menu = {
    Act.COPY: (2, (0.0, 0.0)),
    Act.DELAY: (1, (1.0, 10.0)),
    Act.POISON: (2, (0.0, 0.0)),
}


def draw(
    seed: int, seconds: float, *, producers: int = 3, consumers: int = 2, extras: int = 1, kills: int = 1
) -> Schedule:
    """Draw a schedule of at least `kills` SIGKILLs of each kind of process, a zombie, a store's trouble, and others."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    plans: dict[str, tuple[_Menu, float, list[Act | Trouble]]] = {
        **{f"producer-{number}": (_PRODUCER, 20.0, []) for number in range(producers)},
        **{f"consumer-{number}": (_CONSUMER, 8.0, []) for number in range(consumers)},
        **{f"consumer-{consumers + number}": (_EXTRA, 25.0, [Act.JOIN]) for number in range(extras)},
        BROKER: (_BROKER, 40.0, [Act.KILL] * kills),
        ROGUE: (_ROGUE, 5.0, [Act.COPY, Act.DELAY, Act.POISON]),
    }
    for kind, number in (("producer", producers), ("consumer", consumers)):
        for _ in range(kills):
            plans[f"{kind}-{rng.randrange(number)}"][2].append(Act.KILL)
    plans[f"consumer-{rng.randrange(consumers)}"][2].append(Act.ZOMBIE)
    plans[f"consumer-{rng.randrange(consumers)}"][2].append(rng.choice(list(Trouble)))
    names = [name for name in plans if name.startswith("consumer-")]
    return Schedule(
        seed,
        seconds,
        producers,
        consumers,
        extras,
        kills,
        {name: _timeline(rng, seconds, *plan) for name, plan in plans.items()},
        {name: rng.choice(_AHEAD) for name in names},
        rng.random() < 0.5,
    )


def _timeline(
    rng: random.Random, seconds: float, menu: _Menu, every: float, musts: Sequence[Act | Trouble]
) -> tuple[Fault, ...]:
    """Draw one victim's faults: `musts`, and others, about one in `every` seconds altogether."""
    kinds = list(musts)
    weights = [weight for weight, _ in menu.values()]
    while len(kinds) < seconds / every and rng.random() < 0.9:
        kinds += rng.choices(list(menu), weights)
    rng.shuffle(kinds)
    lasting = [rng.uniform(*menu[kind][1]) for kind in kinds]
    shrink = min(1.0, _BUSY_SHARE * seconds / (sum(lasting) or 1.0))
    # The victim's time between its faults, cut at random.
    lasting = [length if kind is Act.ZOMBIE else length * shrink for kind, length in zip(kinds, lasting, strict=True)]
    cuts = sorted(rng.uniform(0.0, max(seconds - sum(lasting), 0.0)) for _ in kinds)
    return tuple(
        Fault(kind, cut + sum(lasting[:place]), lasting[place])
        for place, (kind, cut) in enumerate(zip(kinds, cuts, strict=True))
    )
