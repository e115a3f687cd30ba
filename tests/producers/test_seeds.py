from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from penstock_producers.envs.seeds import ListedSeeds, Seeds, seeds_from_json
from penstock_schemas.errors import EnvError


def test_every_producer_env_and_episode_has_its_own() -> None:
    producers = [Seeds(7, f"producer-{i}") for i in range(10)]
    drawn = {seeds.episode(env, episode) for seeds in producers for env in range(50) for episode in range(200)}
    assert len(drawn) == 100_000
    assert min(drawn) >= 0
    assert 2**62 < max(drawn) < 2**63
    assert not drawn & {seeds.vector(63) for seeds in producers}


def test_roots_have_their_own() -> None:
    assert len({Seeds(root, "producer").episode(0, 0) for root in (*range(1000), 2**32, 2**64, 2**100)}) == 1003


def test_the_order_of_asking_does_not_matter() -> None:
    triples = list(itertools.product(("a", "b"), range(5), range(200)))
    shuffled = [triples[i] for i in np.random.default_rng(3).permutation(len(triples))]
    seeds = {producer: Seeds(1, producer) for producer in ("a", "b")}
    asked = {triple: seeds[triple[0]].episode(*triple[1:]) for triple in shuffled}
    for producer, env, episode in triples:
        assert asked[producer, env, episode] == Seeds(1, producer).episode(env, episode)


def test_another_process_has_the_same() -> None:
    seeds = Seeds(None, "producer-ü")
    program = (
        "import sys; from penstock_producers.envs.seeds import Seeds; seeds = Seeds(int(sys.argv[1]), sys.argv[2]); "
        "print(seeds.episode(3, 70), seeds.vector(), seeds.actions().integers(2**62))"
    )
    command = [sys.executable, "-c", program, str(seeds.root), seeds.producer]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - it is our own program
    assert [int(word) for word in answer.stdout.split()] == [
        seeds.episode(3, 70),
        seeds.vector(),
        seeds.actions().integers(2**62),
    ]


def test_the_seeds_never_change() -> None:
    # Stored runs are repeated from their root seed: these numbers are part of the format.
    seeds = Seeds(42, "producer-0")
    assert (seeds.episode(0, 0), seeds.episode(0, 64), seeds.episode(9, 1)) == (
        9_013_016_329_583_303_908,
        2_629_631_179_970_218_169,
        6_299_390_312_685_290_711,
    )
    assert seeds.vector() == 1_354_845_306


def test_without_a_root_the_system_gives_one() -> None:
    first, second = Seeds(None, "producer"), Seeds(None, "producer")
    assert first.root != second.root
    assert first.episode(0, 0) != second.episode(0, 0)
    assert Seeds(first.root, "producer").episode(2, 3) == first.episode(2, 3)


@pytest.mark.parametrize("bits", [31, 62])
def test_a_vectors_seed_is_as_wide_as_asked(bits: int) -> None:
    drawn = {Seeds(root, "producer").vector(bits) for root in range(200)}
    assert len(drawn) == 200
    assert 2 ** (bits - 1) < max(drawn) < 2**bits


def test_the_generator_of_the_actions_begins_anew() -> None:
    seeds = Seeds(5, "producer")
    first, again = seeds.actions().random(100), seeds.actions().random(100)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, Seeds(5, "other").actions().random(100))


def test_a_negative_root_is_refused() -> None:
    with pytest.raises(EnvError, match="seed -1: the root seed must not be negative"):
        Seeds(-1, "producer")


def test_listed_seeds_are_dealt_out_in_turn_and_behind_them_each_env_has_others() -> None:
    listed = (5, 0, 2**63 - 1, 7, 9)
    seeds = ListedSeeds(listed, 2)
    assert [[seeds.episode(env, episode) for episode in range(2)] for env in range(2)] == [[5, 2**63 - 1], [0, 7]]
    assert seeds.episode(0, 2) == 9
    behind = [seeds.episode(0, 3), seeds.episode(1, 2), seeds.episode(1, 3)]
    assert len({*listed, *behind}) == 8
    assert seeds.episode(0, 0) == 5  # the order of asking does not matter


@pytest.mark.parametrize("seeds", [Seeds(2**90, "pod-ü"), ListedSeeds([3, 1, 2], 2, root=8, producer="pod-ü")])
def test_described_as_json_they_are_the_same(seeds: Seeds) -> None:
    again = seeds_from_json(json.loads(json.dumps(seeds.to_json())))
    assert type(again) is type(seeds)
    for env, episode in itertools.product(range(2), range(70)):
        assert again.episode(env, episode) == seeds.episode(env, episode)
    assert again.actions().random() == seeds.actions().random()


@pytest.mark.parametrize(
    ("listed", "num_envs", "told"),
    [
        ([1, -1], 1, "seed -1: an episode's seed is an integer from 0 to 2**63 - 1"),
        ([2**63], 1, "seed 9223372036854775808: an episode's seed is an integer from 0"),
        ([1.5], 1, "seed 1.5: an episode's seed is an integer"),
        ([True], 1, "seed True: an episode's seed is an integer"),
        ([4, 1, 4], 1, "seed 4: it is listed twice"),
        ([], 1, "0 seeds for 1 envs"),
        ([1, 2], 3, "2 seeds for 3 envs: each env plays at least one of them"),
        ([1, 2], 0, "2 seeds for 0 envs"),
    ],
)
def test_listed_seeds_that_are_none_are_refused(listed: list[int], num_envs: int, told: str) -> None:
    with pytest.raises(EnvError, match=re.escape(told)):
        ListedSeeds(listed, num_envs)


def test_a_vector_takes_no_listed_seeds() -> None:
    with pytest.raises(EnvError, match="a ready-made vector environment takes one seed of 31 bits for all"):
        ListedSeeds([1], 1).vector()
