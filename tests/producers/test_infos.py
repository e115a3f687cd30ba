from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock_producers.envs.infos import MAX_TEXT_BYTES, InfoBuffer, Unstorable, info_columns
from penstock_schemas.errors import EnvError
from penstock_schemas.spaces.arrays import OFFSET_BYTES

MASK = np.array([1, 0, 1], np.int8)


@pytest.mark.parametrize(
    ("value", "shape", "dtype"),
    [
        (True, (), "uint8"),
        (3, (), "int64"),
        (0.5, (), "float64"),
        ("left", (), "object"),
        (np.float32(1), (), "float32"),
        (MASK, (3,), "int8"),
        (np.ones((2, 2), np.bool_), (2, 2), "uint8"),
        ([1.0, 2.0], (2,), "float64"),
    ],
)
def test_a_column_is_typed_by_the_first_sample_that_has_its_key(value: Any, shape: Any, dtype: str) -> None:
    (column,) = info_columns(["k"], [{"other": 1}, {"k": None}, {"k": value}, {"k": "later"}], "E")
    assert (column.name, column.shape, column.dtype) == ("info.k", shape, np.dtype(dtype))
    assert column.overlap
    assert column.nullable


@pytest.mark.parametrize("value", [{"a": 1}, object(), 1j, [[1], [1, 2]], np.zeros(0), np.array(["a"]), 2**70])
def test_what_cannot_be_recorded_is_refused_by_name(value: Any) -> None:
    with pytest.raises(EnvError, match=r"environment E: info 'k' is a .* cannot be recorded"):
        info_columns(["k"], [{"k": value}], "E")


def test_a_key_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(EnvError, match=r"environment E: no info 'mask' came .* are 'a', 'b'"):
        info_columns(["a", "mask"], [{"b": 1}, {"a": 2}], "E")
    with pytest.raises(EnvError, match="none at all"):
        info_columns(["a"], [], "E")


def test_values_are_kept_where_they_fit_and_null_elsewhere() -> None:
    columns = info_columns(["m", "n", "t", "f"], [{"m": MASK, "n": 1, "t": "a", "f": np.float32(0)}], "E")
    buffer = InfoBuffer(columns, 5)
    buffer.put(0, {"m": MASK, "n": True, "t": "bc", "f": 2})
    buffer.put(1, {"m": [0, 1, 0], "n": np.int32(7), "t": None, "f": float("nan")})
    buffer.put(2, {})
    buffer.put(3, {"m": np.array([300, 0, 0]), "n": 0.5, "t": 4, "f": "x"})
    buffer.put(4, {"m": 1, "n": [1], "t": b"a", "f": [[1], [1, 2]]})
    (m, m_valid), (n, n_valid), (t, t_valid), (f, f_valid) = buffer.rows(5)
    for valid, there in ((m_valid, 2), (n_valid, 2), (t_valid, 1), (f_valid, 2)):
        assert valid.tolist() == [True] * there + [False] * (5 - there)
    assert m[:2].tolist() == [[1, 0, 1], [0, 1, 0]]
    assert n[:2].tolist() == [1, 7]
    assert t.tolist() == ["bc", None, None, None, None]
    assert f[0] == 2
    assert np.isnan(f[1])
    assert [(key, times) for key, times, _ in buffer.take_left_out()] == [(key, 2) for key in "mntf"]
    buffer.put(0, {})
    assert [column.tolist()[0] for _, column in buffer.rows(1)] == [False] * 4


def test_what_is_left_out_is_counted_and_each_keys_first_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    buffers = [InfoBuffer(info_columns(["n", "t"], [{"n": 1, "t": "a"}], "E"), 1) for _ in range(2)]
    unstorable = Unstorable()
    for n in (0.5, 0.25):
        for buffer in buffers:
            buffer.put(0, {"n": n, "t": 7})
            buffer.put(0, {"n": n, "t": "b"})
            unstorable.add(buffer.take_left_out())
            assert buffer.take_left_out() == ()
    assert unstorable == {"n": 8, "t": 4}
    assert caplog.messages == [
        "info 'n' is recorded with shape () and dtype int64, so 0.5 cannot be stored: such values are left out",
        "info 't' is recorded with shape () and dtype object, so 7 cannot be stored: such values are left out",
    ]


def test_a_column_is_as_wide_as_all_samples_of_its_shape() -> None:
    samples = [{"p": 1, "m": MASK, "b": True}, {"p": 1 / 3, "m": [0.5], "b": True}, {"p": "x"}, {"p": Unreadable()}]
    dtypes = [column.dtype.name for column in info_columns(["p", "m", "b"], samples, "E")]
    assert dtypes == ["float64", "int8", "uint8"]


class Unreadable:
    """Is no array, and says so."""

    def __array__(self) -> Any:
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1e300, "float32"),
        (2**53 + 1, "float64"),
        (Unreadable(), "float64"),
        (2**63 + 5, "int64"),
        (np.uint8(200), "int8"),
    ],
)
def test_what_would_become_another_value_is_left_out(value: Any, dtype: str) -> None:
    buffer = InfoBuffer(info_columns(["k"], [{"k": np.zeros((), dtype)}], "E"), 1)
    buffer.put(0, {"k": value})
    ((_, valid),) = buffer.rows(1)
    assert not valid[0]
    assert [(key, times) for key, times, _ in buffer.take_left_out()] == [("k", 1)]


def test_a_text_is_recorded_that_takes_as_much_as_messages_are_planned_for() -> None:
    columns = info_columns(["k"], [{"k": "a"}], "E")
    buffer = InfoBuffer(columns, 2)
    buffer.put(0, {"k": "é" * (MAX_TEXT_BYTES // 2)})
    buffer.put(1, {"k": "é" * (MAX_TEXT_BYTES // 2) + "a"})
    ((values, valid),) = buffer.rows(2)
    assert valid.tolist() == [True, False]
    assert columns[0].max_item_bytes == len(values[0].encode()) + OFFSET_BYTES
