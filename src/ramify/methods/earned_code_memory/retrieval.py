"""Which entries are near a request: BM25 (Robertson and Zaragoza 2009) over an inverted index that grows as entries come.

Axis legend: N documents.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

K1, B = 1.2, 0.75
_WORD = re.compile(r"[^\W_]+", re.UNICODE)
_TOGETHER = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""Scripts that are written without spaces, or whose words change at the end: pairs of characters are their words."""
_STOP_WORDS = "the a an of to in on for and or is are be with it this that my your i you we from by at as please"
_STOP = frozenset(_STOP_WORDS.split())


def terms(text: str) -> list[str]:
    """The terms of a text: words in lower case without plural s; pairs of characters where a script has no spaces."""
    found: list[str] = []
    for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
        if _TOGETHER.search(word):
            found += [word[i : i + 2] for i in range(max(1, len(word) - 1))]
        elif word not in _STOP:
            found.append(word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word)
    return found


@dataclass
class Index:
    """Documents by the order in which they came; one that is dropped stays in the lists and is never found."""

    names: list[str] = field(default_factory=list)
    _postings: dict[str, tuple[array[int], array[int]]] = field(default_factory=dict)
    _lengths: array[int] = field(default_factory=lambda: array("I"))
    _alive: bytearray = field(default_factory=bytearray)
    _position: dict[str, int] = field(default_factory=dict)
    _total: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)
    """Threads of a server add and search: a list whose buffer is being read cannot grow."""

    def __len__(self) -> int:
        return sum(self._alive)

    def add(self, name: str, text: str) -> None:
        """Add a document; one of that name replaces the earlier."""
        counts = Counter(terms(text))
        with self._lock:
            self._add(name, counts)

    def _add(self, name: str, counts: Counter[str]) -> None:
        self.drop(name)
        position = len(self.names)
        self.names.append(name)
        self._position[name] = position
        self._lengths.append(sum(counts.values()))
        self._alive.append(1)
        self._total += self._lengths[-1]
        for term, count in counts.items():
            docs, times = self._postings.setdefault(term, (array("I"), array("I")))
            docs.append(position)
            times.append(count)

    def drop(self, name: str) -> None:
        """Find it no more."""
        with self._lock:
            if (position := self._position.pop(name, None)) is not None:
                self._alive[position] = 0

    def nearest(
        self, query: str, most: int, wanted: Callable[[str], bool] = lambda name: True, core: str | None = None
    ) -> list[tuple[str, float, float]]:
        """At most ``most`` documents by falling score: (name, BM25, share of the terms of ``core``,
        by default the query, that it holds).

        Equal scores stand in the order in which the documents came.
        """
        query_terms = sorted(set(terms(query)))
        if not query_terms or not self._position:
            return []
        with self._lock:
            return self._nearest(query_terms, set(query_terms if core is None else terms(core)), most, wanted)

    def _nearest(
        self, query_terms: list[str], inner: set[str], most: int, wanted: Callable[[str], bool]
    ) -> list[tuple[str, float, float]]:
        n = len(self.names)
        score, held = np.zeros(n, np.float32), np.zeros(n, np.float32)
        lengths = np.frombuffer(self._lengths, np.uint32)
        mean = max(1.0, self._total / n)
        for term in query_terms:
            if (found := self._postings.get(term)) is None:
                continue
            docs, times = np.frombuffer(found[0], np.uint32), np.frombuffer(found[1], np.uint32).astype(np.float32)
            rarity = np.log(1 + (n - len(docs) + 0.5) / (len(docs) + 0.5))
            score[docs] += rarity * times * (K1 + 1) / (times + K1 * (1 - B + B * lengths[docs] / mean))
            held[docs] += term in inner
        score *= np.frombuffer(self._alive, np.uint8)
        return self._best(score, held / max(1, len(inner)), most, wanted)

    def _best(
        self, score: np.ndarray, held: np.ndarray, most: int, wanted: Callable[[str], bool]
    ) -> list[tuple[str, float, float]]:
        count = min(len(score), max(64, 4 * most))
        while True:
            top = np.argpartition(-score, count - 1)[:count] if count < len(score) else np.arange(len(score))
            top = top[score[top] > 0]
            top = top[np.lexsort((top, -score[top]))]
            found = [(self.names[i], float(score[i]), float(held[i])) for i in top.tolist() if wanted(self.names[i])]
            if len(found) >= most or count >= len(score) or len(top) < count:
                return found[:most]
            count = min(len(score), 8 * count)
