"""`penstock-store show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_consumers.cli.finding import find
from penstock_consumers.cli.table import table
from penstock_consumers.cli.words import answer, command, positive
from penstock_consumers.info import ENDS
from penstock_consumers.store.bucket import open_bucket

if TYPE_CHECKING:
    import argparse

    from penstock_consumers.cli.words import Commands
    from penstock_consumers.replay.episodes import Episode

_STEPS = 3
_ABOUT = (
    *("length", "abort_reason", "seed", "reset_options", "continues"),
    *("opened_offset", "closed_offset", "closed_ms", "metrics"),
)
_END_NAMES = {value: name for name, value in ENDS.items()}
# What a person reads of one value.
_MOST_CHARACTERS = 100


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = command(commands, "show", _run, "show one episode: what is known of it, its chunks, its ends")
    parser.add_argument("episode", metavar="EPISODE", help="its id: producer/incarnation/env/episode")
    parser.add_argument(
        "--steps",
        type=positive,
        default=_STEPS,
        metavar="N",
        help=f"how many of the first and of the last steps, {_STEPS} where not given",
    )


def describe(episode: Episode, steps: int) -> dict[str, Any]:
    """Describe an episode in values that JSON has, its first and last `steps` steps with it."""
    count = episode.length
    shown = sorted({*range(min(steps, count)), *range(max(count - steps, 0), count)})
    return {
        "id": episode.id,
        "return": episode.return_,
        "end": _END_NAMES[episode.ends],
        **{name: getattr(episode, name) for name in _ABOUT},
        "chunks": _chunks(episode),
        "steps": [_step(episode, step) for step in shown],
        "last_observation": _at(episode.observation, count),
    }


def _run(words: argparse.Namespace) -> int:
    described = describe(find(open_bucket(words.store), words.episode), words.steps)
    answer(words, described, _format(described))
    return 0


def _format(described: dict[str, Any]) -> str:
    lines = [
        f"{name.replace('_', ' '):17}{_short(value)}"
        for name, value in described.items()
        if name not in {"chunks", "steps", "last_observation"} and value not in (None, {})
    ]
    lines += ["", *table(described["chunks"])]
    before = -1
    for step in described["steps"]:
        lines += ["", f"step {step['step']}" if step["step"] == before + 1 else f"… step {step['step']}"]
        lines += [f"  {name:15}{_short(value)}" for name, value in step.items() if name != "step"]
        before = step["step"]
    lines += ["", f"last observation {_short(described['last_observation'])}"]
    return "\n".join(lines)


def _chunks(episode: Episode) -> list[dict[str, Any]]:
    first = episode.chunk_first_step
    lengths = np.diff(first, append=episode.length)
    return [
        {
            "chunk": chunk,
            "first_step": int(start),
            "steps": int(length),
            # Of a chunk without a step nothing tells who acted.
            "policy_version": int(episode.policy_version[start]) if length else None,
            "policy_digest": episode.policy_digest[chunk].hex()[:16],
        }
        for chunk, (start, length) in enumerate(zip(first, lengths, strict=True))
    ]


def _step(episode: Episode, step: int) -> dict[str, Any]:
    return {
        "step": step,
        "observation": _at(episode.observation, step),
        "action": _at(episode.action, step),
        "reward": _at(episode.reward, step),
        **{name: _at(values, step) for name, values in episode.extras.items()},
        **{f"info.{name}": _at(values, step) for name, values in episode.infos.items()},
    }


def _at(values: Any, step: int) -> Any:
    """What a tree of arrays holds at a step, in values that JSON has; None where it is masked."""
    match values:
        case dict():
            return {name: _at(inner, step) for name, inner in values.items()}
        case tuple():
            return [_at(inner, step) for inner in values]
        case np.ma.MaskedArray():
            return None if np.ma.getmaskarray(values)[step].any() else _at(values.data, step)
        case _:
            value = values[step]
            return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _short(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}… ({len(text):,} characters)"
