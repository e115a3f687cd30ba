"""A store through Arrow alone: one segment mapped, all of them as a dataset, an episode as numpy arrays."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock_consumers.replay import Replay

store = sys.argv[1] if len(sys.argv) > 1 else "build/run/store"
files = Replay.open(store).files()  # those that live: more lie in the folder, which wait to be deleted

with pa.memory_map(files[0]) as mapped, pa.ipc.open_file(mapped) as reader:
    segment = reader.read_all()
    print(f"{segment.num_rows:,} episodes in {segment.nbytes:,} bytes; copied: {pa.total_allocated_bytes():,}")

dataset = ds.dataset(files, format="ipc")
whole = ds.field("ends").isin([1, 2, 3]) & ds.field("continues").is_null()  # terminated, truncated or both; in one part
episodes = dataset.to_table(columns=["producer", "env", "episode", "return", "length", "policy_version"], filter=whole)

versions = episodes["policy_version"].combine_chunks()  # an item a chunk; the last one's chose the last action
last = versions.flatten().take(pc.subtract(pc.cumulative_sum(pc.list_value_length(versions)), 1))
by_version = episodes.append_column("version", last).group_by("version")
measured = by_version.aggregate([([], "count_all"), ("return", "mean"), ("length", "mean")]).sort_by("version")
print("\nby policy version: episodes, mean return, mean length")
for row in measured.to_pylist():
    print(f"{row['version']:6,} {row['count_all']:10,} {row['return_mean']:12,.2f} {row['length_mean']:12,.2f}")

print("\nthe ten best")
for row in episodes.drop_columns("policy_version").sort_by([("return", "descending")]).slice(0, 10).to_pylist():
    print(row)

# A step a row of what an episode lists; items with a shape are flat, their shape stands in the field's metadata.
best = dataset.filter(whole & (ds.field("return") == pc.max(episodes["return"]))).head(1)
observation = best["observation"].combine_chunks().flatten()
print(f"\nthe best episode: {observation.type}, {dataset.schema.field('observation').metadata}")
observations = np.array(observation.flatten()).reshape(len(observation), -1)
rewards = best["reward"].combine_chunks().flatten().to_numpy()
print(f"{observations.shape=}, {rewards.shape=}, {observations[-1]=}")  # one observation more than there are steps
