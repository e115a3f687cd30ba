"""The log under everything: one small interface, Kafka and an in-memory twin behind it."""

from penstock_schemas.log.base import (
    Appended,
    Appender,
    GroupListener,
    GroupReader,
    Headers,
    Log,
    Reader,
    Record,
    RecordHeaders,
    TopicInfo,
)

__all__ = [
    "Appended",
    "Appender",
    "GroupListener",
    "GroupReader",
    "Headers",
    "Log",
    "Reader",
    "Record",
    "RecordHeaders",
    "TopicInfo",
]
