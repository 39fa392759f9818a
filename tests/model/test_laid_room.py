from __future__ import annotations

from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.model.laid import TooLongError, check_room
from ramify.model.tokenizer import HfTokenizer

TOKENIZER = HfTokenizer.load(str(resources.files("ramify") / "assets" / "household"))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.lists(st.text("ab ü字\n.", max_size=40).map(lambda text: text * 800), min_size=1, max_size=3))
def test_what_fits_is_never_refused(texts: list[str]) -> None:
    check_room(TOKENIZER, texts, sum(len(TOKENIZER.encode(text)) for text in texts), "tiny")


def test_only_the_beginning_of_a_long_text_is_encoded() -> None:
    encoded = []

    class Counting(HfTokenizer):
        def encode(self, text: str) -> list[int]:
            encoded.append(len(text))
            return super().encode(text)

    with pytest.raises(TooLongError, match=r"more than \d+ tokens; 'tiny' holds 512"):
        check_room(Counting(TOKENIZER.raw), ["word " * 1_000_000], 512, "tiny")
    assert sum(encoded) == 10_000
