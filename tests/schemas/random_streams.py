"""Random streams, for property tests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from penstock_schemas.columns import Column
from penstock_schemas.spaces.arrays import WIRE_DTYPES
from tests.schemas.batches import stream
from tests.schemas.random_spaces import SHAPES, TEXTS, spaces

if TYPE_CHECKING:
    from penstock_schemas.stream import StreamSpec

_numbers = st.builds(Column, st.just(""), SHAPES, st.sampled_from(WIRE_DTYPES).map(np.dtype))
_texts = st.just(Column("", (), np.dtype(object)))


@st.composite
def streams(draw: st.DrawFn) -> StreamSpec:
    """A stream of any spaces, with extras, infos, states and metrics of any dtype, shape and name; some absent."""
    extras = draw(st.lists(st.tuples(_numbers | _texts, st.booleans()), max_size=2))
    infos = draw(st.lists(_numbers | _texts, max_size=2))
    states = draw(st.lists(_numbers, max_size=2))
    return stream(
        draw(spaces),
        draw(spaces),
        extras=[replace(column, name=f"extra{at}", nullable=absent) for at, (column, absent) in enumerate(extras)],
        infos=[replace(column, name=f"info.{at}", overlap=True, nullable=True) for at, column in enumerate(infos)],
        states=[replace(column, name=f"state.{at}") for at, column in enumerate(states)],
        metrics=draw(st.lists(TEXTS.filter(bool), max_size=2, unique=True)),
    )
