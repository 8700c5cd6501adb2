"""What providers give for their counts of tokens, in whatever shape."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightlog_hookspecs import Usage
from flightlog_plugins.wire.tokens import count, counted
from support.wire_recordings import ODD_COUNTS


@given(whole=st.integers(0, 2**53), fraction=st.floats(0, 0.9))
def test_a_count_is_a_whole_number_and_of_an_estimate_the_whole_part(whole: int, fraction: float) -> None:
    assert count(whole) == whole
    assert count(whole + fraction) == int(whole + fraction)


@pytest.mark.parametrize("odd", ODD_COUNTS, ids=str)
def test_anything_else_is_none_and_leaves_the_others_uncounted(odd: Any) -> None:
    assert count(odd) is None
    for place in range(4):
        counts = [7, 7, 7, 7]
        counts[place] = odd
        assert (counted(*counts) is None) == (odd is not None)
    assert count(-inf) is None


@given(st.tuples(*[st.integers(0, 2**30)] * 4))
def test_each_token_is_counted_once_and_none_less_than_never(counts: tuple[int, int, int, int]) -> None:
    sent, generated, cached, written = counts
    assert counted(*counts) == Usage(
        input_tokens=max(0, sent - cached - written),
        output_tokens=generated,
        cached_tokens=cached,
        cache_write_tokens=written,
    )
    assert counted(None, None, None, None) == Usage()
