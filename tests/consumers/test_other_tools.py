"""Every column that a stream may have, as Polars and DuckDB read it."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from penstock_schemas.columns import Column, item_column, list_column
from penstock_schemas.spaces.arrays import WIRE_DTYPES

ITEMS = 5
OFFSETS = np.array([0, 2, ITEMS], np.int32)
VALID = np.array([True, False, True, True, True])
COLUMNS = [
    *(
        Column(f"{dtype}{len(shape)}{nullable}", shape, np.dtype(dtype), nullable=nullable)
        for dtype in WIRE_DTYPES
        for shape in ((), (2, 3))
        for nullable in (False, True)
    ),
    Column("text", (), np.dtype(object)),
    Column("note", (), np.dtype(object), nullable=True),
    Column("frames", (84, 84, 4), np.dtype(np.uint8)),
]
HALVES = [column for column in COLUMNS if column.dtype == np.float16]


def values(column: Column, count: int) -> Any:
    if column.is_text:
        return np.array(["a", "", "ü", "to be read", "e"][:count], object)
    size = int(np.prod(column.shape, dtype=int))
    return (np.arange(count * size) % 120).reshape(count, *column.shape).astype(column.dtype)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, pa.Table]:
    """A file with a list column of each, and a column of one item a row of those that may be a state or a metric."""
    arrays = [list_column(column, values(column, ITEMS), OFFSETS, VALID) for column in COLUMNS]
    fields = [column.field for column in COLUMNS]
    states = [Column("state", (3,), np.dtype(np.float32)), Column("metric", (), np.dtype(np.float64), nullable=True)]
    arrays += [item_column(column, values(column, 2), VALID[:2] if column.nullable else None) for column in states]
    fields += [column.row_field for column in states]
    batch = pa.record_batch(arrays, schema=pa.schema(fields))
    path = str(tmp_path_factory.mktemp("tools") / "segment.arrow")
    with pa.ipc.new_file(path, batch.schema) as writer:
        writer.write_batch(batch)
    return path, pa.Table.from_batches([batch])


def plain(value: Any) -> Any:
    """Lists, however a tool names them."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return plain(value.to_list()) if hasattr(value, "to_list") else value


def test_polars_reads_every_column(table: tuple[str, pa.Table]) -> None:
    path, expected = table
    found = pl.scan_ipc(path).collect()
    assert found.columns == expected.column_names
    for name in found.columns:
        assert plain(found[name].to_list()) == plain(expected[name].to_pylist()), name


def test_duckdb_reads_every_column_but_half_floats(table: tuple[str, pa.Table]) -> None:
    path, expected = table
    dataset = ds.dataset([path], format="ipc")
    assert "state" in dataset.schema.names
    with pytest.raises(duckdb.NotImplementedException, match="Unsupported Internal Arrow Type e"):
        duckdb.sql("select metric from dataset")
    # As the page tells: what is left out, or widened, on the Arrow side.
    halves = {column.name for column in HALVES}
    columns = {name: ds.field(name) for name in dataset.schema.names if name not in halves}
    columns["half"] = ds.field(HALVES[0].name).cast(pa.list_(pa.float32()))
    found = duckdb.from_arrow(dataset.scanner(columns=columns)).fetchall()
    for at, name in enumerate(columns):
        source = HALVES[0].name if name == "half" else name
        assert plain([row[at] for row in found]) == plain(expected[source].to_pylist()), name


def test_what_only_arrow_tells(table: tuple[str, pa.Table]) -> None:
    path, expected = table
    assert ds.dataset([path], format="ipc").schema.field("frames").metadata == {
        b"shape": b"[84, 84, 4]",
        b"dtype": b"uint8",
    }
    assert expected.schema.field("frames").type.value_type.list_size == 84 * 84 * 4
    assert pl.scan_ipc(path).collect_schema()["frames"] == pl.List(pl.Array(pl.UInt8, 84 * 84 * 4))
