"""`penstock-producer check`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from penstock_producers.check.run import MODES, check_env
from penstock_producers.envs.source import EnvSource
from penstock_producers.envs.wrapper import Wrapper
from penstock_schemas.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Check an environment from the command line.

    Returns 0 where it keeps every rule, 1 where it breaks one, 2 where it is not there or an argument is wrong.
    """
    arguments = _parser().parse_args(argv)
    try:
        wrappers = tuple(Wrapper.from_json(wrapper) for wrapper in arguments.wrappers)
        source = EnvSource(arguments.env, arguments.env_arguments, wrappers)
        report = check_env(
            source, modes=arguments.modes, num_envs=arguments.num_envs, steps=arguments.steps, seed=arguments.seed
        )
    except EnvError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{json.dumps(report.to_json(), indent=2) if arguments.json else report}\n")
    return 0 if report.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock-producer check",
        description="Check that an environment keeps the rules by which its experience is recorded.",
    )
    parser.add_argument("--env", required=True, help="a gymnasium id, module:id, module:factory, or envpool:task")
    parser.add_argument("--env-arguments", type=_object, default={}, metavar="JSON", help="what it is made with")
    parser.add_argument(
        "--wrappers", type=_objects, default=[], metavar="JSON", help='a list of {"name": …, "arguments": {…}}'
    )
    parser.add_argument("--num-envs", type=_positive, default=3, help="how many are stepped together (%(default)s)")
    parser.add_argument("--steps", type=_positive, default=200, help="of each env in each mode (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of seeds and actions (%(default)s)")
    parser.add_argument("--modes", nargs="+", choices=MODES, metavar="MODE", help=f"some of {', '.join(MODES)}")
    parser.add_argument("--json", action="store_true", help="write the report as JSON")
    return parser


def _object(text: str) -> dict[str, Any]:
    described = _json(text)
    if not isinstance(described, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return described


def _objects(text: str) -> list[dict[str, Any]]:
    described = _json(text)
    if not isinstance(described, list) or not all(isinstance(item, dict) for item in described):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON list of objects")
    return described


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from error


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number
