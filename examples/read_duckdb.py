"""A store in SQL: DuckDB over the segments as one Arrow dataset."""

import sys

import duckdb
import pyarrow.dataset as ds

from penstock_consumers.replay import Replay

store = sys.argv[1] if len(sys.argv) > 1 else "build/run/store"
# The files that live. DuckDB finds a variable by its name, and reads the columns that a query names.
stored = ds.dataset(Replay.open(store).files(), format="ipc")

# Whole ones in one part: terminated is 1, truncated 2; a part of an episode that was cut names the one before.
duckdb.sql("create view whole as from stored where ends in (1, 2, 3) and continues is null")

# `policy_version` has an item a chunk: the last one's chose the last action.
print(
    duckdb.sql("""
        select policy_version[-1] as version, count(*) as episodes,
               round(avg("return"), 2) as mean_return, round(avg(length), 2) as mean_length
        from whole group by version order by version
    """)
)
print(
    duckdb.sql("""
        select producer, incarnation, env, episode, "return", length from whole order by "return" desc limit 10
    """)
)
print(
    duckdb.sql("""
        with steps as (select unnest(range(length)) as step, unnest(reward) as reward from whole)
        select step, avg(reward) as mean_reward, count(*) as episodes from steps group by step order by step limit 10
    """)
)
# One episode, a step a row: an observation is an array, and there is one more of them than there are steps.
print(
    duckdb.sql("""
        with best as (from whole order by "return" desc limit 1)
        select unnest(range(length)) as step, unnest(observation[:length]) as observation,
               unnest(action) as action, unnest(reward) as reward
        from best limit 10
    """)
)
