from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from penstock_consumers.store.bucket import open_bucket
from tests.consumers.stores import Writer, episodes, stream

if TYPE_CHECKING:
    from pathlib import Path

READ = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {
            "torch", "gymnasium", "kafka", "prometheus_client", "pydantic", "pydantic_settings", "rich"
        }:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
try:
    import torch
except ModuleNotFoundError:
    pass
else:
    sys.exit("torch is not blocked")

from penstock_consumers.cli.info import format_info
from penstock_consumers.info import describe
from penstock_consumers.replay import Prefetch, Replay, RunningStatistics
from penstock_consumers.store.bucket import open_bucket

replay = Replay.open(sys.argv[1])
with Prefetch(replay.transitions(32)) as batches:
    batch = next(batches)
print(replay.steps, len(list(replay.episodes())), len(batch["reward"]))
next(replay.sequences(4, 2))
next(replay.scan())
try:
    import penstock_consumers.replay.torch
except ModuleNotFoundError as error:
    print(error, file=sys.stderr)
print(format_info(describe(open_bucket(sys.argv[1]))))
"""


def test_a_learner_needs_neither_torch_nor_gymnasium_nor_any_service(tmp_path: Path) -> None:
    writer = Writer(open_bucket(tmp_path), stream())
    writer.commit(0, episodes(writer.spec, [3, 4]))
    command = [sys.executable, "-c", READ, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603  (our own)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("7 2 32\n")
    assert done.stderr == "No module named 'torch'\n"
