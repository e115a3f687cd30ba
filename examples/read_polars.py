"""A store in Polars: a lazy frame of episodes, their steps exploded where they are asked for."""

import sys

import polars as pl

from penstock_consumers.replay import Replay

store = sys.argv[1] if len(sys.argv) > 1 else "build/run/store"
stored = pl.scan_ipc(Replay.open(store).files())  # the files that live; columns that no query names are not read
# Whole ones in one part: terminated is 1, truncated 2; a part of an episode that was cut names the one before.
whole = stored.filter(pl.col("ends").is_in([1, 2, 3]), pl.col("continues").is_null())

by_version = (
    whole.group_by(pl.col("policy_version").list.last())  # an item a chunk; the last one's chose the last action
    .agg(pl.len().alias("episodes"), pl.mean("return").alias("mean_return"), pl.mean("length").alias("mean_length"))
    .sort("policy_version")
)
print(by_version.collect())

best = whole.select("producer", "incarnation", "env", "episode", "return", "length").top_k(10, by="return")
print(best.collect())

by_step = (
    whole.select(pl.int_ranges("length").alias("step"), "reward")
    .explode("step", "reward")
    .group_by("step")
    .agg(pl.mean("reward").alias("mean_reward"), pl.len().alias("episodes"))
    .sort("step")
)
print(by_step.head(10).collect())

# One episode, a step a row: an observation is an array, and there is one more of them than there are steps.
steps = whole.top_k(1, by="return").select(
    pl.int_ranges("length").alias("step"), pl.col("observation").list.head("length"), "action", "reward"
)
print(steps.explode(pl.all()).collect())
