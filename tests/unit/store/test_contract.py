"""The contract's own functions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.contract import KEY_END, prefix_end

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=4)


@given(texts, texts)
def test_a_prefix_ends_where_its_last_key_does(prefix: str, rest: str) -> None:
    """Every key with the prefix is below the end, every other key is not between."""
    end = prefix_end(prefix)
    end.encode()
    assert (prefix + rest < end) or prefix + rest >= KEY_END
    other = rest
    if not other.startswith(prefix) and prefix <= other < KEY_END:
        assert other >= end


def test_the_end_of_everything_and_of_the_edges() -> None:
    assert prefix_end("") == KEY_END
    assert prefix_end("a/") == "a0"
    assert prefix_end("a\U0010ffff") == "b"
    assert prefix_end("\ud7ff") == "\ue000"
