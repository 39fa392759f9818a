"""Potentials that others measured, from a file: the same test, and what of it remains once it is corrected over all tokens.

Read are the paper's JSON (``response_tokens`` and ``all_position_scores``), its CSV (``position, token, potential``), and JSON
lines with ``k`` and ``n`` of positions 0..T (``response_ids`` or ``tokens``). The paper's files hold the potential after each
token but the last, and none of the bare prompt.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.files import reason
from ramify.base.words import plural
from ramify.methods.cliffs.algorithm import detect
from ramify.methods.cliffs.run import ScanConfig, Scanned
from ramify.methods.cliffs.traces import potentials_of
from ramify.render.result import Result, Section, table
from ramify.stats.drops import Counts, ZTest
from ramify.stats.evidence import benjamini_hochberg
from ramify.trace.lines import at_place, read_lines
from ramify.trace.lines import field as read_field


@dataclass(frozen=True)
class KnownReply:
    """A reply with potentials that were not measured here."""

    id: str
    tokens: tuple[str, ...]
    potentials: tuple[Counts | None, ...]
    """Of positions 0..T; None where the file has none."""
    correct: bool | None = None

    @property
    def length(self) -> int:
        """T: tokens of the reply."""
        return len(self.tokens)


@dataclass(frozen=True)
class KnownLine:
    """A reply of a file."""

    reply: str
    right: bool | None
    tokens: int
    found: int
    """Drops that the test finds, one token at a time."""
    corrected: int
    """Those that remain where false ones are bounded over all tokens of the file."""


@dataclass(frozen=True)
class KnownReplies(Result):
    """What the potentials in a file come to."""

    tests: int
    replies: tuple[KnownLine, ...]

    def sections(self) -> Iterable[Section]:
        """The verdict, and a row each."""
        found, left = (sum(getattr(line, name) for line in self.replies) for name in ("found", "corrected"))
        says = (
            f"{plural(found, 'cliff')} found in {plural(len(self.replies), 'reply')}, none checked on fresh forks; "
            f"{left} remain corrected over the {self.tests} tokens tested. What was found for being large is checked by forks "
            "that did not find it: `ramify cliffs scan` with the model."
        )
        rows = [(line.reply, line.right, line.tokens, line.found, line.corrected) for line in self.replies]
        yield Section.of("", says, table(("reply", "right", "tokens", "found", "corrected"), rows))


def scanned_of(replies: Sequence[KnownReply], config: ScanConfig) -> list[Scanned]:
    """Each reply with the cliffs and rebounds that the test of the paper (3.2) finds in it."""
    return [
        Scanned(
            reply,
            tuple(detect(reply.id, reply.potentials, config.test)),
            tuple(detect(reply.id, reply.potentials, config.test, rises=True)),
            sum(counts.forks for counts in reply.potentials if counts),
            len(_tests(reply)),
        )
        for reply in replies
    ]


def listed(scanned: Sequence[Scanned], config: ScanConfig) -> KnownReplies:
    """A row each, with what remains after Benjamini and Hochberg over every token of every reply."""
    tests = [(at, pair) for at, one in enumerate(scanned) for pair in _tests(one.trace)]
    p = benjamini_hochberg([ZTest(config.delta0, config.alpha).p_value(*pair) for _, pair in tests]) if tests else []
    rows = []
    for at, one in enumerate(scanned):
        left = sum(value <= config.fdr for value, (of, _) in zip(p, tests, strict=True) if of == at)
        rows.append(KnownLine(one.trace.id, one.trace.correct, one.trace.length, len(one.cliffs), left))
    return KnownReplies(len(tests), tuple(rows))


def _tests(reply: KnownReply) -> list[tuple[Counts, Counts]]:
    measured = [counts for counts in reply.potentials if counts is not None and counts.n]
    return list(pairwise(measured))


def read_known(path: Path, n: int) -> list[KnownReply]:
    """The replies of a file; ``n`` forks stand per potential that is a share. Raises UserError naming place and field."""
    if path.suffix == ".csv":
        return [_of_csv(path, n)]
    try:
        whole = json.loads(path.read_text(encoding="utf-8")) if path.suffix == ".json" else None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from None
    records = read_lines(path) if whole is None else enumerate(whole if isinstance(whole, list) else [whole], 1)
    replies: dict[str, KnownReply] = {}
    for number, record in records:
        with at_place(f"{path}:{number}"):
            reply = _of_json(record, n, f"{path.stem}:{number}")
            if reply.id in replies:
                raise UserError(f"reply '{reply.id}' is there twice")
            replies[reply.id] = reply
    if not replies:
        raise UserError(f"{path} holds no reply")
    return list(replies.values())


def _of_json(record: Any, n: int, name: str) -> KnownReply:
    if not isinstance(record, dict):
        raise UserError("a reply is an object with 'k' and 'n', or with 'all_position_scores'")
    name = read_field(record, "id", str, "the reply", name)
    correct = read_field(record, "correct" if "correct" in record else "is_correct", bool, "the reply", None)
    tokens = next((record[key] for key in ("response_tokens", "tokens") if record.get(key) is not None), None)
    if tokens is None:
        ids = read_field(record, "response_ids", list, "the reply")
        tokens = [f"<{token}>" for token in ids]
    if not tokens or not all(isinstance(token, str) for token in tokens):
        raise UserError("the tokens must be a list of texts, at least one")
    if "all_position_scores" in record:
        scores = read_field(record, "all_position_scores", list, "the reply")
        return _behind(name, tokens, scores, n, correct)
    potentials = potentials_of(record)
    if potentials is None:
        raise UserError("neither 'k' and 'n' nor 'all_position_scores' is there")
    if len(potentials) != len(tokens) + 1:
        raise UserError(f"'k' has {len(potentials)} positions, and a reply of {len(tokens)} tokens has {len(tokens) + 1}")
    return KnownReply(name, tuple(tokens), potentials, correct)


def _of_csv(path: Path, n: int) -> KnownReply:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from None
    if not rows or not {"token", "potential"} <= set(rows[0]):
        raise UserError(f"{path} has no rows with the columns 'token' and 'potential'")
    scores: list[Any] = []
    for number, row in enumerate(rows, 2):
        try:
            scores.append(float(row["potential"]) if row["potential"] else None)
        except (TypeError, ValueError):
            raise UserError(f"{path}: row {number}: potential is {row['potential']!r:.40}, not a share") from None
    with at_place(str(path)):
        return _behind(path.stem, [row["token"] or "" for row in rows], scores, n, None)


def _behind(name: str, tokens: Sequence[str], scores: Sequence[Any], n: int, correct: bool | None) -> KnownReply:
    """A reply whose potentials are shares of ``n`` forks after each token, the last one without or with."""
    if len(scores) not in (len(tokens), len(tokens) - 1):
        raise UserError(f"there are {len(scores)} potentials after {plural(len(tokens), 'token')}")
    counts: list[Counts | None] = [None]
    for at, score in enumerate(scores, 1):
        if score is None:
            counts.append(None)
            continue
        k = score * n if isinstance(score, int | float) and 0 <= score <= 1 else -1.0
        if abs(k - round(k)) > 1e-6 or k < 0:
            raise UserError(f"the potential after token {at} is {score!r:.40}, not a share of {n} forks: see --n")
        counts.append(Counts(round(k), n))
    counts += [None] * (len(tokens) + 1 - len(counts))
    return KnownReply(name, tuple(tokens), tuple(counts), correct)
