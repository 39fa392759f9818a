"""Docstrings are wrapped for their readers; what help and lists print of them is not cut where a line ended."""

from __future__ import annotations

from ramify.base import registry
from ramify.base.words import unwrapped
from ramify.cli.methods import summary


def test_a_paragraph_is_one_line_and_a_list_stays() -> None:
    text = "One sentence\nin two lines.\n\nThen:\n- a\n- b\n\n    indented\n    code\n\nThe\nend."
    assert unwrapped(text) == "One sentence in two lines.\n\nThen:\n- a\n- b\n\n    indented\n    code\n\nThe end."


def test_summaries_are_whole_sentences() -> None:
    assert [slug for slug in registry.builtin_methods() if summary(slug)[-1:] not in (".", "?")] == []
