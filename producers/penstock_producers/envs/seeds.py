"""Seeds: each episode of each env of each producer has its own, and anyone can compute it again."""

from __future__ import annotations

from enum import IntEnum
from hashlib import sha256
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator, SeedSequence

from penstock_schemas.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import SupportsIndex

_BLOCK = 64
_LIMIT = 1 << 63


class _Use(IntEnum):
    EPISODES = 0
    VECTOR = 1
    ACTIONS = 2


class Seeds:
    """All seeds of one producer, drawn from one root seed.

    Each is a pure function of the root, the producer's name and what it is for: neither the order in which seeds are
    asked for nor the process that asks matters, so whoever knows `root` and `producer` has the same ones.
    A seed is a hash of 63 bits: among a hundred million episodes any two share one with a chance of 1 in 2,000.

    Args:
        root: Not negative; None draws 128 bits from the system.
        producer: The producer's stable name; producers that share a root still have seeds of their own.

    Attributes:
        root: The root seed, also where the system gave it.
        producer: The producer's name.
    """

    def __init__(self, root: SupportsIndex | None, producer: str) -> None:
        # As an int of Python's own, since it is written as JSON.
        self.root: int = index(SeedSequence().entropy if root is None else root)  # type: ignore[arg-type]  # an int
        if self.root < 0:
            raise EnvError(f"seed {root}: the root seed must not be negative")
        self.producer = producer
        self._producer_words = tuple(np.frombuffer(sha256(producer.encode()).digest()[:16], "<u4").tolist())
        self._blocks: dict[int, tuple[int, list[int]]] = {}

    def episode(self, env: int, episode: int) -> int:
        """Give the seed of one env's episode: 0 … 2**63 - 1."""
        number, place = divmod(episode, _BLOCK)
        block = self._blocks.get(env)
        if block is None or block[0] != number:
            block = self._blocks[env] = (number, self._draw(_Use.EPISODES, env, number).tolist())
        return block[1][place]

    def vector(self, bits: int = 31) -> int:
        """Give the seed of a ready-made vector env's one reset: as wide as a signed integer in C, or of `bits` bits."""
        return int(self._draw(_Use.VECTOR)[0]) >> (63 - bits)

    def actions(self) -> Generator:
        """Make the generator of the actions, from its beginning."""
        return np.random.default_rng(self._sequence(_Use.ACTIONS))

    def to_json(self) -> dict[str, Any]:
        """Describe them, for another process; `seeds_from_json` reads it back."""
        return {"root": self.root, "producer": self.producer}

    def _draw(self, *use: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        # One SeedSequence costs far more than the numbers that it gives, so they are drawn a block at a time.
        return self._sequence(*use).generate_state(_BLOCK, np.uint64) >> np.uint64(1)

    def _sequence(self, *use: int) -> SeedSequence:
        return SeedSequence(self.root, spawn_key=(*self._producer_words, *use))


class ListedSeeds(Seeds):
    """The seeds of a list, dealt out to envs in turn: the i-th one to env i modulo N, as its i // N-th episode.

    An env whose share is used up gets seeds as `Seeds` draws them: it is reset behind its last episode, whoever asked.

    Args:
        listed: each from 0 to 2**63 - 1, and once.
        num_envs: N; no more than there are seeds.
        root: of all other seeds.
        producer: the producer's stable name.

    Raises `EnvError` for seeds that are none, and for a list that leaves an env without one.

    Attributes:
        listed: the list.
        num_envs: N.
    """

    def __init__(
        self, listed: Iterable[int | np.integer[Any]], num_envs: int, *, root: int = 0, producer: str = ""
    ) -> None:
        super().__init__(root, producer)
        self.listed = tuple(seed.item() if isinstance(seed, np.integer) else seed for seed in listed)
        self.num_envs = num_envs
        seen: set[int] = set()
        for seed in self.listed:
            if type(seed) is not int or not 0 <= seed < _LIMIT:
                raise EnvError(f"seed {seed!r}: an episode's seed is an integer from 0 to 2**63 - 1")
            if seed in seen:
                raise EnvError(f"seed {seed}: it is listed twice, and would give the same episode; list it once")
            seen.add(seed)
        if not 0 < num_envs <= len(self.listed):
            raise EnvError(f"{len(self.listed)} seeds for {num_envs} envs: each env plays at least one of them")

    def episode(self, env: int, episode: int) -> int:
        """Give the seed of one env's episode: the list's, or behind its end one that is drawn."""
        place = env + episode * self.num_envs
        return self.listed[place] if place < len(self.listed) else super().episode(env, episode)

    def vector(self, bits: int = 31) -> int:
        """Refuse: raises `EnvError`, since a ready-made vector environment takes one seed for all its episodes."""
        raise EnvError(
            f"{len(self.listed)} listed seeds: a ready-made vector environment takes one seed of {bits} bits for all "
            "its episodes; step single envs, in lanes"
        )

    def to_json(self) -> dict[str, Any]:
        """Describe them, for another process; `seeds_from_json` reads it back."""
        return {**super().to_json(), "listed": list(self.listed), "num_envs": self.num_envs}


def seeds_from_json(described: Mapping[str, Any]) -> Seeds:
    """Read what `to_json` described."""
    return ListedSeeds(**described) if "listed" in described else Seeds(**described)
