from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.model.protocol import Tokenizer
from ramify.model.tokenizer import HfTokenizer, continued

from .helpers import byte_tokenizer

TOKENIZER = byte_tokenizer()


def metaspace() -> HfTokenizer:
    from tokenizers import Tokenizer as Raw
    from tokenizers import decoders, models, pre_tokenizers, trainers

    raw = Raw(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    raw.train_from_iterator(
        ["the door and the key"] * 3, trainers.BpeTrainer(vocab_size=40, special_tokens=["<unk>"], show_progress=False)
    )
    return HfTokenizer(raw)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.text(max_size=40))
def test_ends_cover_the_text_of_any_encoding(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    ends = TOKENIZER.ends(ids)
    assert len(ends) == len(ids)
    assert (np.diff(ends) >= 0).all()
    for i in range(len(ids)):  # a prefix's whole characters are the text up to its end
        assert TOKENIZER.decode(ids[: i + 1]).rstrip("\ufffd") == text[: ends[i]].rstrip("\ufffd")
    if ids:
        assert ends[-1] == len(text)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, TOKENIZER.size - 1), max_size=60))
def test_ends_of_any_tokens_even_broken_characters(ids: list[int]) -> None:
    ends = TOKENIZER.ends(ids)
    assert len(ends) == len(ids)
    assert (np.diff(ends) >= 0).all()
    if ids:
        assert ends[-1] == len(TOKENIZER.decode(ids))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.one_of(
        st.text("üé字🙃\ufffd a.", max_size=30).map(TOKENIZER.encode), st.lists(st.integers(0, TOKENIZER.size - 1), max_size=60)
    )
)
def test_ends_are_what_a_prefix_shares_with_the_whole(ids: list[int]) -> None:
    text, wanted = TOKENIZER.decode(ids), 0
    for i, end in enumerate(TOKENIZER.ends(ids)):
        head = TOKENIZER.decode(ids[: i + 1])
        wanted = max(wanted, next(k for k in range(len(head), -1, -1) if text.startswith(head[:k])))
        assert end == (len(text) if i == len(ids) - 1 else wanted)


def test_ends_of_a_long_text_take_few_decodes() -> None:
    decoded = []

    class Counting(HfTokenizer):
        def decode(self, tokens: Sequence[int]) -> str:
            decoded.append(len(tokens))
            return super().decode(tokens)

    ids = TOKENIZER.encode("字 und ü" * 300) + [TOKENIZER.encode("字")[0]] * 300
    Counting(TOKENIZER.raw).ends(ids)
    assert sum(decoded) < 60 * len(ids)


def test_a_character_of_several_tokens_ends_with_the_last() -> None:
    ids = TOKENIZER.encode("a🙃b")
    assert len(ids) > 4
    ends = TOKENIZER.ends(ids)
    assert ends.tolist() == [1] * (len(ids) - 2) + [2, 3]


def test_word_initial_rules() -> None:
    tokenizer = metaspace()
    ids = tokenizer.encode("the key and the door")
    ends = tokenizer.ends(ids)
    text = tokenizer.decode(ids)
    assert [text[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)] == [
        tokenizer.decode(ids[: i + 1])[len(tokenizer.decode(ids[:i])) :] for i in range(len(ids))
    ]


def test_hash_covers_the_merges(tmp_path: Path) -> None:
    assert isinstance(TOKENIZER, Tokenizer)
    assert TOKENIZER.hash == byte_tokenizer().hash
    assert TOKENIZER.hash != byte_tokenizer(301).hash
    (tmp_path / "tokenizer.json").write_text(TOKENIZER.to_json(), encoding="utf-8")
    assert HfTokenizer.load(tmp_path).hash == TOKENIZER.hash
    assert TOKENIZER.token_id("<|end|>") == 0
    assert TOKENIZER.decode([0]) == "<|end|>"
    with pytest.raises(UserError, match="no token"):
        TOKENIZER.token_id("<|nope|>")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="cannot read the tokenizer"):
        HfTokenizer.load(tmp_path)
    with pytest.raises(UserError, match="no tokenizer at"):
        HfTokenizer.load(tmp_path / "none")


@pytest.mark.parametrize("tokenizer", [TOKENIZER, metaspace()])
def test_a_text_that_is_continued_is_the_text_of_all_its_tokens(tokenizer: HfTokenizer) -> None:
    ids = np.array(tokenizer.encode("the door and the key"), np.int32)
    whole, ends = tokenizer.decode(ids.tolist()), tokenizer.ends(ids.tolist())
    for cut in range(len(ids) + 1):
        text, own = continued(tokenizer, ids[:cut], ids[cut:])
        start = int(ends[cut - 1]) if cut else 0
        assert whole[:start] + text == whole
        np.testing.assert_array_equal(own + start, ends[cut:])


def test_a_character_that_begins_before_ends_where_the_text_is_continued() -> None:
    ids = np.array(TOKENIZER.encode("the 😀"), np.int32)
    text, ends = continued(TOKENIZER, ids[:-1], ids[-1:])
    assert (text, ends.tolist()) == ("😀", [1])
