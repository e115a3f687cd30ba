"""The replay store: objects in a bucket, and the commits that tie them together."""
