"""An off-policy learner: double Q-learning with n-step returns, which sees nothing but a store.

    python -m examples.dqn --store build/run/store --stream cartpole --bootstrap-servers 127.0.0.1:9092

It reads through `Replay`, publishes through `PolicyPublisher`, and never touches an environment. Meanwhile producers
run `--policy q-network` and act with each version as it comes. It ends with SIGTERM, Ctrl-C or after --seconds; while
the store or the log is away, it says so and waits.
"""

import argparse
import copy
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

import torch

from penstock_consumers.policies import PolicyPublisher
from penstock_consumers.replay import Replay, RunningStatistics
from penstock_producers.policy.networks import build_network
from penstock_schemas.connectors import Pipeline, make_pipeline
from penstock_schemas.errors import CorruptStoreError, RecoverableError, StoreError, StoreFormatError
from penstock_schemas.spaces import Discrete
from penstock_schemas.stream import StreamSpec

COLUMNS = ("observation", "action", "reward", "discount", "next_observation")
LEARNING_RATE = 2e-3
FOLLOW = 0.1  # the target's share of news an update


class DoubleQ:
    """Learns what actions are worth.

    Rewards count (1 - gamma) of what they are, so that what an action is worth is of a reward's size whatever the
    horizon; the best action is the same.

    Attributes:
        pipeline: the stream's connectors, through which observations go before they come here.
        online: what learns.
        target: its running average: what it is measured by, and the steadier one to act.
    """

    def __init__(self, spec: StreamSpec, *, gamma: float, conservative: float = 0.0) -> None:
        """Make the network that the stream's producers run.

        Args:
            spec: the stream's.
            gamma: the discount of a step.
            conservative: how much it counts that actions which the data did not take are not thought to be better.
        """
        if not isinstance(spec.action, Discrete):
            raise SystemExit(f"actions are {spec.action}: this learner values those of a Discrete space")
        self.pipeline: Pipeline = make_pipeline(spec.policy["connectors"], spec.observation, spec.action)
        arguments = spec.policy["arguments"]
        self.online = build_network("q-network", self.pipeline.space, spec.action.n, 0, arguments)
        self.target = copy.deepcopy(self.online).requires_grad_(requires_grad=False)
        self._scale, self._conservative = 1.0 - gamma, conservative
        self._optimizer = torch.optim.Adam(self.online.parameters(), lr=LEARNING_RATE)

    def load(self, weights: Mapping[str, Any]) -> None:
        """Go on from a version's weights."""
        for network in (self.online, self.target):
            network.load_state_dict({name: torch.as_tensor(weights[name]) for name in network.state_dict()})

    def learn(self, batch: Mapping[str, Any]) -> float:
        """Do one update by a batch of transitions; give how far off it was, as a mean square."""
        observation, action, reward, discount, following = (torch.as_tensor(batch[name]) for name in COLUMNS)
        with torch.no_grad():
            # One network chooses, the other one values: neither flatters itself.
            best = self.online(following)[0].argmax(1, keepdim=True)
            later = self.target(following)[0].gather(1, best).squeeze(1)
            wanted = self._scale * reward.float() + discount * later
        of_each = self.online(observation)[0]
        worth = of_each.gather(1, action.long().unsqueeze(1)).squeeze(1)
        loss = torch.nn.functional.mse_loss(worth, wanted)
        if self._conservative:
            loss = loss + self._conservative * (of_each.logsumexp(1) - worth).mean()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        torch.nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self._optimizer.step()
        with torch.no_grad():
            for average, newest in zip(self.target.parameters(), self.online.parameters(), strict=True):
                average.lerp_(newest, FOLLOW)
        return loss.item()


def opened(store: str, steps: int, stopped: threading.Event) -> Replay | None:
    """Wait until a store is there and holds so many steps; None where it is time to stop before."""
    replay, told = None, ""
    while not stopped.wait(0.2):
        try:
            replay = replay or Replay.open(store)
            replay.refresh()
        except (CorruptStoreError, StoreFormatError):
            raise
        except (StoreError, RecoverableError) as error:  # a consumer makes it when it learns what the stream is
            if str(error) != told:
                told = str(error)
                print(f"waiting for the store: {told}", flush=True)
            continue
        if replay.steps >= steps:
            return replay
    return None


def train(words: argparse.Namespace, replay: Replay, publisher: PolicyPublisher, stopped: threading.Event) -> None:
    """Learn from what comes, and publish every now and then, until it is time to stop."""
    learner = DoubleQ(replay.spec, gamma=words.gamma)
    if (last := publisher.last()) is not None:  # of a learner before this one
        learner.load(last.weights)
    statistics = RunningStatistics(replay)
    statistics.update()
    learner.pipeline.load(statistics.weights)
    n_step, gamma, seed = words.n_step, words.gamma, words.seed
    batches = replay.transitions(
        words.batch_size, n_step=n_step, gamma=gamma, columns=COLUMNS, connectors=learner.pipeline, seed=seed
    )
    started, updates = time.monotonic(), 0
    while not stopped.is_set() and time.monotonic() - started < words.seconds:
        try:
            # No step is learned from more than so many times: a learner that is faster than its producers waits.
            if updates * words.batch_size > words.replays * replay.steps_ever:
                stopped.wait(0.05)
                replay.refresh()
                continue
            loss = learner.learn(next(batches))
            updates += 1
            if updates % words.publish_updates:
                continue
            # By the version, which outlives this process: a learner that is started again explores no more than before.
            epsilon = max(words.epsilon, 1.0 - (publisher.newest + 1) / words.epsilon_versions)
            version = publisher.publish(learner.target, epsilon=epsilon, connectors=statistics.weights).version
            told = f"version {version}: {updates:,} updates, {replay.steps:,} steps, epsilon {epsilon:.2f}"
            print(f"{told}, loss {loss:.2g}, {updates / (time.monotonic() - started):.0f} updates/s", flush=True)
            replay.refresh()
            statistics.update()
            learner.pipeline.load(statistics.weights)  # what is drawn from here on is seen so
        except RecoverableError as error:  # the log or the store is away
            print(f"waiting: {error}", flush=True)
            stopped.wait(1.0)


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Tells defaults, and leaves the text above them as it is."""


def main() -> None:
    """Learn as the flags say."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    flags.add_argument(
        "--store", required=True, default=argparse.SUPPRESS, help="a folder, or any URL that obstore opens"
    )
    flags.add_argument("--stream", required=True, default=argparse.SUPPRESS, help="whose policy is published")
    flags.add_argument("--bootstrap-servers", default="127.0.0.1:9092", help="Kafka, for the announcements")
    flags.add_argument("--seed", type=int, default=0, help="of the network and of what is drawn")
    flags.add_argument("--seconds", type=float, default=float("inf"), help="when to end")
    flags.add_argument("--first-steps", type=int, default=2_000, help="in the store before the first update")
    flags.add_argument("--batch-size", type=int, default=128, help="transitions in an update")
    flags.add_argument("--n-step", type=int, default=5, help="steps of reward that a transition sums")
    flags.add_argument("--gamma", type=float, default=0.98, help="the discount of a step")
    flags.add_argument("--replays", type=float, default=64.0, help="how often a step is learned from, at most")
    flags.add_argument("--publish-updates", type=int, default=100, help="how often to publish, and to read on")
    flags.add_argument("--epsilon", type=float, default=0.05, help="of exploration, in the end")
    flags.add_argument("--epsilon-versions", type=int, default=15, help="over how many versions it comes down from 1")
    words = flags.parse_args()
    torch.set_num_threads(1)  # small matrices: more threads wait for each other
    torch.manual_seed(words.seed)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    replay = opened(words.store, words.first_steps, stopped)
    if replay is not None:
        with PolicyPublisher(words.stream, store=words.store, log=words.bootstrap_servers) as publisher:
            train(words, replay, publisher, stopped)


if __name__ == "__main__":
    main()
