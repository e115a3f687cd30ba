"""What no log's appender takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock_schemas.log.base import RecordHeaders


def check_given(where: str, key: bytes | None, value: bytes | None, headers: RecordHeaders) -> None:
    """Raise `ValueError` for a record without key and value, and for one with a null header.

    Kafka has null headers, but kafka-python, which can read them, cannot write them.
    """
    if key is None and value is None:
        raise ValueError(f"a record for {where} has neither key nor value: give one")
    for name, content in headers:
        if content is None:
            raise ValueError(f"a record for {where} has the null header {name!r}: give an empty one, or none")
