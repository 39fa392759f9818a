"""Sentences of a text as character spans that cover it without a gap: span i is [ends of sentence i - 1, end of sentence i)."""

from __future__ import annotations

import importlib
import re
from typing import Literal

import numpy as np

from ramify.base.errors import NeedsError
from ramify.trace.node import Node

By = Literal["prose", "stops", "lines"]
_ENDS = {"stops": re.compile(r"[.!?]+(?=\s|$)|\n+"), "lines": re.compile(r"\n+")}


def sentences(text: str, by: By = "prose") -> list[tuple[int, int]]:
    """Spans of the sentences of ``text``; space before a sentence belongs to it. Empty where the text is only space.

    ``prose`` knows abbreviations and quotations (syntok); ``stops`` ends a sentence at each ``.!?`` before space and at each
    line; ``lines`` at lines. Raises NeedsError where syntok is missing.
    """
    ends = _prose(text) if by == "prose" else [match.end() for match in _ENDS[by].finditer(text)]
    ends = [*(end for end in ends if end < len(text)), len(text)]
    spans: list[tuple[int, int]] = []
    start = 0
    for end in ends:
        if text[start:end].strip():
            spans.append((start, end))
            start = end
        elif spans:
            spans[-1] = (spans[-1][0], end)
            start = end
    return spans


def _prose(text: str) -> list[int]:
    try:
        segmenter = importlib.import_module("syntok.segmenter")
    except ImportError as error:
        raise NeedsError(f"sentences of prose need the package 'syntok': pip install 'ramify[forensics]' ({error})") from error
    return [tokens[-1].offset + len(tokens[-1].value) for paragraph in segmenter.analyze(text) for tokens in paragraph]


def sentence_offsets(node: Node, by: By = "prose", start: int = 0) -> list[int]:
    """Token offsets inside ``node``: before its first sentence from token ``start`` on, and after each, (S + 1,).

    A boundary inside a token moves to that token's start. Empty where nothing is said. Raises NeedsError where the node has no
    character ends of its tokens.
    """
    if node.ends is None:
        raise NeedsError(f"node {node.id} carries no character ends of its tokens, so its sentences cannot be found")
    ends = np.asarray(node.ends)
    begin = int(ends[start - 1]) if start else 0
    text = node.text[begin:]
    spans = sentences(text, by)
    if not spans:
        return []
    offsets = [start, *(int(np.searchsorted(ends, begin + end, side="right")) for _, end in spans)]
    return [offset for i, offset in enumerate(offsets) if i == 0 or offset > offsets[i - 1]]
