"""A run's SQLite file: its tables, and how records become rows and come back.

Arrays are raw little-endian blobs: int32 tokens and ends, float32 log-probs and per-token values, sampled masks as packed bits
(first token in the highest bit of the first byte). JSON columns hold canonical JSON. Text is stored as text; the rare text that
UTF-8 cannot express (a lone surrogate from a foreign log) is stored as a blob of its surrogatepass encoding. Small columns come
first in a row so that a scan of them need not follow overflow pages. ``seq`` is the order of writing. Scores lie together by the
set of judges they depended on, so that erasing one judge touches few pages.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from math import isfinite
from types import NoneType
from typing import Any, TypeVar

import numpy as np

from ramify.base.errors import RamifyError, UserError
from ramify.base.ids import canonical_json
from ramify.trace.node import (
    Annotation,
    AttemptRecord,
    Context,
    Finding,
    KeptResult,
    Node,
    Provenance,
    Score,
    TokenValues,
    content_id,
    context_from_json,
)

_T = TypeVar("_T")
SCHEMA = 1
APPLICATION_ID = 0x72616D69  # "rami" in the file's header: tells a run from any other SQLite file

TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trees (
  seq INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, grp TEXT NOT NULL, task TEXT NOT NULL, data TEXT NOT NULL);
CREATE INDEX trees_by_group ON trees (grp);
CREATE TABLE provenances (seq INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, body TEXT NOT NULL);
CREATE TABLE contexts (seq INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, body TEXT NOT NULL);
CREATE TABLE nodes (
  seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
  tree INTEGER NOT NULL REFERENCES trees (seq), parent INTEGER REFERENCES nodes (seq), offset INTEGER NOT NULL,
  length INTEGER NOT NULL, role TEXT NOT NULL, opens INTEGER NOT NULL,
  context INTEGER REFERENCES contexts (seq), provenance INTEGER REFERENCES provenances (seq), purpose TEXT NOT NULL,
  sample INTEGER NOT NULL,
  state_key TEXT, stop TEXT NOT NULL, reward REAL,
  text TEXT NOT NULL, tokens BLOB, sampled BLOB, logprobs BLOB, ends BLOB, data TEXT NOT NULL, snapshot TEXT);
CREATE INDEX nodes_by_tree ON nodes (tree);
CREATE INDEX nodes_by_parent ON nodes (parent);
CREATE UNIQUE INDEX one_root_a_tree ON nodes (tree) WHERE parent IS NULL;
CREATE TABLE attempts (
  seq INTEGER PRIMARY KEY, tree INTEGER NOT NULL REFERENCES trees (seq), leaf INTEGER NOT NULL REFERENCES nodes (seq),
  start INTEGER REFERENCES nodes (seq), offset INTEGER NOT NULL, purpose TEXT NOT NULL, sample INTEGER NOT NULL,
  outcome INTEGER, reward REAL, truncated INTEGER NOT NULL, failure TEXT, provenance INTEGER REFERENCES provenances (seq));
CREATE INDEX attempts_by_leaf ON attempts (leaf);
CREATE UNIQUE INDEX attempts_by_place ON attempts (tree, ifnull(start, 0), offset, purpose, sample, ifnull(provenance, 0));
CREATE TABLE token_values (
  seq INTEGER PRIMARY KEY, node INTEGER NOT NULL REFERENCES nodes (seq), name TEXT NOT NULL, maker TEXT NOT NULL,
  vals BLOB NOT NULL, UNIQUE (node, name, maker));
CREATE TABLE annotations (
  seq INTEGER PRIMARY KEY, node INTEGER NOT NULL REFERENCES nodes (seq), offset INTEGER NOT NULL, name TEXT NOT NULL,
  maker TEXT NOT NULL, value TEXT NOT NULL, UNIQUE (node, offset, name, maker));
CREATE TABLE judge_sets (seq INTEGER PRIMARY KEY, judges TEXT NOT NULL UNIQUE);
CREATE TABLE score_judges (
  judge_set INTEGER NOT NULL REFERENCES judge_sets (seq), slot TEXT NOT NULL, judge TEXT NOT NULL, UNIQUE (judge_set, slot));
CREATE INDEX score_judges_by_judge ON score_judges (judge);
CREATE TABLE scores (
  judge_set INTEGER NOT NULL REFERENCES judge_sets (seq), node INTEGER NOT NULL REFERENCES nodes (seq), scorer TEXT NOT NULL,
  unit TEXT NOT NULL, value REAL, confidence REAL, evidence TEXT NOT NULL, cost TEXT NOT NULL,
  PRIMARY KEY (judge_set, node, scorer, unit)) WITHOUT ROWID;
CREATE INDEX scores_by_node ON scores (node);
CREATE TABLE findings (
  seq INTEGER PRIMARY KEY, node INTEGER REFERENCES nodes (seq), offset INTEGER NOT NULL, name TEXT NOT NULL, maker TEXT NOT NULL,
  value REAL, unit TEXT NOT NULL, why TEXT NOT NULL, action TEXT NOT NULL, evidence TEXT NOT NULL, identity TEXT NOT NULL);
CREATE UNIQUE INDEX findings_by_maker ON findings (maker, name, ifnull(node, 0), offset, why);
CREATE TABLE results (
  seq INTEGER PRIMARY KEY, maker TEXT NOT NULL UNIQUE, result TEXT NOT NULL, sections TEXT NOT NULL);
CREATE TABLE journal (
  seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, payload TEXT NOT NULL, UNIQUE (kind, key));
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA};
"""

INSERT_NODE = "INSERT INTO nodes VALUES (NULL" + ",?" * 21 + ") ON CONFLICT (id) DO NOTHING"
INSERT_ATTEMPT = (
    "INSERT INTO attempts VALUES (NULL,?,?,?,?,?,?,?,?,?,?,?) "
    "ON CONFLICT (tree, ifnull(start, 0), offset, purpose, sample, ifnull(provenance, 0)) DO UPDATE SET leaf = excluded.leaf, "
    "outcome = excluded.outcome, reward = excluded.reward, truncated = excluded.truncated, failure = excluded.failure"
)
INSERT_TOKEN_VALUES = (
    "INSERT INTO token_values VALUES (NULL,?,?,?,?) ON CONFLICT (node, name, maker) DO UPDATE SET vals = excluded.vals"
)
INSERT_ANNOTATION = (
    "INSERT INTO annotations VALUES (NULL,?,?,?,?,?) ON CONFLICT (node, offset, name, maker) DO UPDATE SET value = excluded.value"
)
INSERT_SCORE = (
    "INSERT INTO scores VALUES (?,?,?,?,?,?,?,?) ON CONFLICT (judge_set, node, scorer, unit) DO UPDATE SET "
    "value = excluded.value, confidence = excluded.confidence, evidence = excluded.evidence, cost = excluded.cost"
)
INSERT_FINDING = (
    "INSERT INTO findings VALUES (NULL,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (maker, name, ifnull(node, 0), offset, why) DO UPDATE "
    "SET "
    "value = excluded.value, unit = excluded.unit, action = excluded.action, evidence = excluded.evidence, "
    "identity = excluded.identity"
)

INSERT_RESULT = (
    "INSERT INTO results VALUES (NULL,?,?,?) ON CONFLICT (maker) DO UPDATE SET result = excluded.result, "
    "sections = excluded.sections"
)

SELECT_NODE = (
    "SELECT n.id, t.name, (SELECT id FROM nodes p WHERE p.seq = n.parent), n.offset, n.role, n.text, n.tokens, n.sampled, "
    "n.logprobs, n.ends, n.opens, (SELECT hash FROM contexts c WHERE c.seq = n.context), "
    "(SELECT hash FROM provenances c WHERE c.seq = n.provenance), n.sample, n.purpose, n.snapshot, n.state_key, n.stop, "
    "n.reward, n.data, n.length FROM nodes n JOIN trees t ON t.seq = n.tree "
)
SELECT_ATTEMPT = (
    "SELECT n.id, t.name, (SELECT id FROM nodes p WHERE p.seq = s.start), s.offset, s.purpose, s.sample, s.outcome, s.reward, "
    "s.truncated, s.failure, (SELECT hash FROM provenances c WHERE c.seq = s.provenance) "
    "FROM attempts s JOIN nodes n ON n.seq = s.leaf JOIN trees t ON t.seq = s.tree "
)
SELECT_TOKEN_VALUES = "SELECT n.id, s.name, s.maker, s.vals FROM token_values s JOIN nodes n ON n.seq = s.node "
SELECT_ANNOTATION = "SELECT n.id, s.offset, s.name, s.maker, s.value FROM annotations s JOIN nodes n ON n.seq = s.node "
SELECT_SCORE = (
    "SELECT n.id, s.scorer, s.value, s.unit, s.confidence, s.evidence, s.cost, j.judges "
    "FROM scores s JOIN nodes n ON n.seq = s.node JOIN judge_sets j ON j.seq = s.judge_set "
)
SELECT_FINDING = (
    "SELECT s.name, s.maker, s.why, n.id, s.offset, s.action, s.value, s.unit, s.evidence, s.identity "
    "FROM findings s LEFT JOIN nodes n ON n.seq = s.node "
)


def stored(decode: Callable[..., _T]) -> Callable[..., _T]:
    """Decorates what reads stored values (into records, summaries, pages):
    what a damaged one makes it stumble over becomes a RamifyError."""

    @functools.wraps(decode)
    def guarded(*args: Any, **settings: Any) -> _T:
        try:
            return decode(*args, **settings)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            raise RamifyError(f"a stored record is damaged: {type(error).__name__} {error}") from error

    return guarded


def to_text(value: str) -> str | bytes:
    """Text as SQLite can hold it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
    return value


def from_text(value: str | bytes) -> str:
    """Inverse of :func:`to_text`."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogatepass")


@stored
def name(value: Any) -> str:
    """A name as stored. Raises RamifyError where it is none."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a name")
    return value


def to_json(value: Any, what: str) -> str | bytes:
    """Canonical JSON for a column. Raises UserError naming ``what`` when ``value`` is not JSON."""
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        value = dict(value)
    try:
        return to_text(canonical_json(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{what} is not storable as JSON: {error}") from error


_EMPTY: Mapping[str | bytes, Callable[[], Any]] = {"{}": dict, "null": lambda: None}
"""What most rows hold, which need not be parsed."""


@stored
def from_json(value: str | bytes) -> Any:
    """Inverse of :func:`to_json`. Raises RamifyError when the stored text is damaged."""
    return _EMPTY[value]() if value in _EMPTY else json.loads(from_text(value))


def from_object(value: str | bytes) -> dict[str, Any]:
    """Like :func:`from_json`, of a column that holds objects only."""
    record = from_json(value)
    if not isinstance(record, dict):
        raise RamifyError(f"a stored record is damaged: {str(record)[:40]!r} is not an object")
    return record


def from_judges(value: str | bytes) -> dict[str, str]:
    """Like :func:`from_object`, of a set of judges: slot -> the judge's hash."""
    judges = from_object(value)
    if not all(isinstance(judge, str) for judge in judges.values()):
        raise RamifyError(f"a stored record is damaged: {str(judges)[:40]!r} are no judges")
    return judges


def finite(value: float | None, what: str) -> float | None:
    """A float that is a number. Raises UserError naming ``what`` on NaN and infinities, which no reader could trust."""
    if value is None:
        return None
    number = float(value)
    if not isfinite(number):
        raise UserError(f"{what} is {number}, not a number")
    return number


def node_row(node: Node, tree: int, parent: int | None, context: int | None, provenance: int | None) -> tuple[Any, ...]:
    """The row of a node, ``seq`` left to SQLite. Raises UserError on a reward that is not a number or data that is not JSON."""
    return (
        node.id,
        tree,
        parent,
        node.offset,
        len(node),
        node.role,
        node.opens,
        context,
        provenance,
        to_text(node.purpose),
        node.index,
        None if node.state_key is None else to_text(node.state_key),
        node.stop,
        None if node.reward is None else finite(node.reward, f"the reward of node {node.id}"),
        to_text(node.text),
        _blob(node.tokens, "<i4"),
        None if node.sampled is None else np.packbits(node.sampled).tobytes(),
        _blob(node.logprobs, "<f4"),
        _blob(node.ends, "<i4"),
        to_json(node.data, f"the data of node {node.id}") if node.data else "{}",
        None if node.snapshot is None else to_text(node.snapshot),
    )


@stored
def row_node(row: tuple[Any, ...]) -> Node:
    """A node from a row of ``SELECT_NODE``. Arrays are writable copies.
    Raises RamifyError where its id is not that of its content."""
    sampled, tokens = row[7], _array(row[6], "<i4")
    if tokens is not None and row[20] != len(tokens):
        raise ValueError(f"node {row[0]} has {len(tokens)} tokens, not {row[20]}")
    node = Node(
        row[0],
        row[1],
        row[2],
        row[3],
        row[4],
        from_text(row[5]),
        tokens,
        None if sampled is None else np.unpackbits(np.frombuffer(sampled, np.uint8), count=row[20]).view(np.bool_),
        _array(row[8], "<f4"),
        _array(row[9], "<i4"),
        bool(row[10]),
        row[11],
        row[12],
        row[13],
        from_text(row[14]),
        None if row[15] is None else from_text(row[15]),
        None if row[16] is None else from_text(row[16]),
        row[17],
        row[18],
        {} if row[19] == "{}" else from_object(row[19]),
    )
    if content_id(node) != node.id:
        raise ValueError(f"node {node.id} has another content than its id says")
    return node


def attempt_row(
    attempt: AttemptRecord, tree: int, leaf: int, start: int | None, length: int, provenance: int | None
) -> tuple[Any, ...]:
    """The row of an attempt. Raises UserError where its offset is outside a start of ``length``, or its reward no number."""
    if not 0 <= attempt.offset <= length:
        raise UserError(f"the attempt that ends at {attempt.leaf} starts at offset {attempt.offset} of a node of length {length}")
    return (
        tree,
        leaf,
        start,
        attempt.offset,
        to_text(attempt.purpose),
        attempt.index,
        attempt.outcome,
        finite(attempt.reward, f"the reward of the attempt that ends at {attempt.leaf}"),
        attempt.truncated,
        None if attempt.failure is None else to_text(attempt.failure),
        provenance,
    )


@stored
def row_attempt(row: tuple[Any, ...]) -> AttemptRecord:
    """An attempt from a row of ``SELECT_ATTEMPT``."""
    known = row[6] in (None, 0, 1) and row[8] in (0, 1)
    if not known or not isinstance(row[7], (float, NoneType)) or not isinstance(row[5], int):
        raise ValueError(f"the attempt that ends at {row[0]} has an outcome, reward or index that is none")
    outcome, failure = None if row[6] is None else bool(row[6]), None if row[9] is None else from_text(row[9])
    leaf, tree, start, offset = row[:4]
    purpose, index, reward = from_text(row[4]), row[5], row[7]
    return AttemptRecord(leaf, tree, start, offset, purpose, index, outcome, reward, bool(row[8]), failure, row[10])


def token_values_row(token_values: TokenValues, seq: int, length: int) -> tuple[Any, ...]:
    """The row of per-token values, as float32. Raises UserError when they do not fit a node of ``length``."""
    values = np.asarray(token_values.values)
    if values.shape != (length,):
        raise UserError(
            f"the token values '{token_values.name}' have shape {values.shape} on node {token_values.node}, which has length "
            f"{length}"
        )
    return seq, token_values.name, token_values.maker, _blob(values, "<f4")


@stored
def row_token_values(row: tuple[Any, ...]) -> TokenValues:
    """Per-token values from a row of ``SELECT_TOKEN_VALUES``."""
    return TokenValues(row[0], row[1], row[2], np.frombuffer(row[3], "<f4").copy())


def annotation_row(annotation: Annotation, seq: int, length: int) -> tuple[Any, ...]:
    """The row of an annotation. Raises UserError when its offset is outside a node of ``length``."""
    if not 0 <= annotation.offset <= length:
        raise UserError(
            f"annotation '{annotation.name}' is at offset {annotation.offset} of node {annotation.node}, which has length "
            f"{length}"
        )
    return (
        seq,
        annotation.offset,
        annotation.name,
        annotation.maker,
        to_json(annotation.value, f"the value of annotation '{annotation.name}'"),
    )


@stored
def row_annotation(row: tuple[Any, ...]) -> Annotation:
    """An annotation from a row of ``SELECT_ANNOTATION``."""
    return Annotation(row[0], row[1], row[2], row[3], from_json(row[4]))


def score_row(score: Score, seq: int, judge_set: int) -> tuple[Any, ...]:
    """The row of a score. Raises UserError on a value that is not a number."""
    what = f"of the score of '{score.scorer}' on node {score.node}"
    return (
        judge_set,
        seq,
        score.scorer,
        score.unit,
        finite(score.value, f"the value {what}"),
        finite(score.confidence, f"the confidence {what}"),
        to_json(score.evidence, f"the evidence {what}"),
        to_json(score.cost, f"the cost {what}"),
    )


@stored
def row_score(row: tuple[Any, ...]) -> Score:
    """A score from a row of ``SELECT_SCORE``."""
    return Score(row[0], row[1], row[2], row[3], row[4], from_json(row[5]), from_object(row[6]), from_judges(row[7]))


def finding_row(finding: Finding, seq: int | None, length: int) -> tuple[Any, ...]:
    """The row of a finding. Raises UserError when its offset is outside a node of ``length``, or its value is not a number."""
    what = f"of the finding '{finding.name}' of {finding.maker}"
    if not 0 <= finding.offset <= length:
        raise UserError(f"the offset {what} is {finding.offset}, and node {finding.node} has length {length}")
    return (
        seq,
        finding.offset,
        finding.name,
        finding.maker,
        finite(finding.value, f"the value {what}"),
        finding.unit,
        to_text(finding.why),
        to_text(finding.action),
        to_json(finding.evidence, f"the evidence {what}"),
        to_json(finding.identity, f"the identity {what}"),
    )


@stored
def row_finding(row: tuple[Any, ...]) -> Finding:
    """A finding from a row of ``SELECT_FINDING``."""
    why, action = from_text(row[2]), from_text(row[5])
    return Finding(row[0], row[1], why, row[3], row[4], action, row[6], row[7], from_json(row[8]), from_object(row[9]))


def result_row(kept: KeptResult) -> tuple[Any, ...]:
    """The row of a kept result. Raises UserError where it is not JSON."""
    what = f"the result of '{kept.maker}'"
    return kept.maker, to_json(kept.result, what), to_json(list(kept.sections), what)


@stored
def row_result(row: tuple[Any, ...]) -> KeptResult:
    """A kept result from its row. Raises RamifyError where its sections are no list."""
    sections = from_json(row[2])
    if not isinstance(sections, list):
        raise TypeError(f"the sections of '{row[0]}' are no list")
    return KeptResult(name(row[0]), from_object(row[1]), sections)


@stored
def row_context(row: tuple[Any, ...]) -> Context:
    """A context from its body and hash. Raises RamifyError where they do not belong together."""
    return _hashed("context", context_from_json(from_json(row[0])), row[1])


@stored
def row_provenance(row: tuple[Any, ...]) -> Provenance:
    """A provenance from its body and hash. Raises RamifyError where they do not belong together."""
    return _hashed("provenance", Provenance(**from_json(row[0])), row[1])


_H = TypeVar("_H", Context, Provenance)


def _hashed(kind: str, record: _H, name: str) -> _H:
    if record.hash != name:
        raise ValueError(f"{kind} {name} has another content than its hash says")
    return record


def where(wanted: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The condition that every column that is given has its value, and the values."""
    given = {column: value for column, value in wanted.items() if value is not None}
    return ("WHERE " + " AND ".join(f"{column} = ?" for column in given) if given else ""), list(given.values())


def _blob(array: np.ndarray | None, dtype: str) -> bytes | None:
    return None if array is None else array.astype(dtype, copy=False).tobytes()


def _array(blob: bytes | None, dtype: str) -> np.ndarray | None:
    return None if blob is None else np.frombuffer(blob, dtype).copy()  # a copy can be written to
