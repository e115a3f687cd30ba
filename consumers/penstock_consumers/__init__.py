"""From the log to the learner: assembling episodes, the replay store, and the reader over it."""
