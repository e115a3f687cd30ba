"""What an env shows before its first episode: its spaces, and infos to type the recorded ones by."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from penstock_producers.contained import CONTAINED, told
from penstock_producers.envs.infos import info_columns
from penstock_producers.envs.lanes.buffers import Spaces
from penstock_producers.spaces import from_gymnasium
from penstock_schemas.errors import EnvError, SpaceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gymnasium

    from penstock_producers.envs.seeds import Seeds

_ACTION_SEED = 0
# How many episodes are begun until one shows its infos.
_TRIES = 5


def probe(env: gymnasium.Env[Any, Any], infos: Sequence[str], *, seeds: Seeds, index: int, name: str) -> Spaces:
    """Map the spaces of the env of an index, and type the infos that are recorded by one reset and one random step.

    The env is left in the middle of an episode where there are infos; without any it is only looked at.

    Raises:
        SpaceError: a space that is not mapped.
        EnvError: an info that is not there, or an env that fails in each of its first episodes.
    """
    try:
        observation = from_gymnasium(env.observation_space, "observation")
        action = from_gymnasium(env.action_space, "action")
    except AttributeError as error:
        raise EnvError(
            f"environment {name}: an env has an observation_space and an action_space, but {error}"
        ) from error
    except SpaceError as error:
        raise SpaceError(f"environment {name}: {error}") from error
    columns = info_columns(infos, _first_infos(env, seeds, index, name), name) if infos else ()
    return Spaces(observation, action, columns)


def _first_infos(env: gymnasium.Env[Any, Any], seeds: Seeds, index: int, name: str) -> list[dict[str, Any]]:
    """The infos of a reset and a step, with the seed of the first episode in which neither fails."""
    # A copy: seeding the env's own would change what it samples later.
    actions = copy.deepcopy(env.action_space)
    actions.seed(_ACTION_SEED)
    for episode in range(_TRIES):
        try:
            _, at_reset = env.reset(seed=seeds.episode(index, episode))
            *_, at_step = env.step(actions.sample())
        except CONTAINED as error:
            failure = error
        else:
            return _dicts(at_reset, at_step)
    raise EnvError(
        f"environment {name}: to see what its infos are, it was reset and stepped with the seeds of its first {_TRIES} "
        f"episodes, each of which failed, the last one with {told(failure)}; mend the environment"
    ) from failure


def _dicts(*infos: Any) -> list[dict[str, Any]]:
    # What is no dict is a fault of the first episode, not of the probe.
    return [info for info in infos if isinstance(info, dict)]
