"""The contract's own functions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.keys import after_prefix
from holdfast.store.contract import KEY_END

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=4)


@given(texts, texts)
def test_a_prefix_ends_where_its_last_key_does(prefix: str, rest: str) -> None:
    """Every key with the prefix is below the end, every other key is not between."""
    end = after_prefix(prefix)
    end.encode()
    assert (prefix + rest < end) or prefix + rest >= KEY_END
    other = rest
    if not other.startswith(prefix) and prefix <= other < KEY_END:
        assert other >= end


def test_the_end_of_everything_and_of_the_edges() -> None:
    assert after_prefix("") == KEY_END
    assert after_prefix("a/") == "a0"
    assert after_prefix("a\U0010ffff") == "b"
    assert after_prefix("\ud7ff") == "\ue000"
