"""Attempts of a run as rows for other trainers, and their rows as trees: shared by the TRL and verl integrations.

Rows of tokens are cut from the tree's own tokens, never encoded again. Where a reply was sampled from an explicit context
(compaction, a truncated view) its row shows that context, not the history.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.base.errors import NeedsError, UserError, nearest
from ramify.base.files import whole_file
from ramify.score.credit.protocol import CreditGroup, assigned, find_rule
from ramify.trace.context import changed
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Node, TokenValues
from ramify.trace.notes import lost
from ramify.trace.outcome import Decider, decider
from ramify.trace.path import Path as TracePath
from ramify.trace.tree import Tree
from ramify.trace.view import View, views

Messages = list[dict[str, Any]]
_BATCH = 256


class Selection(Config):
    """Which attempts of a run become rows."""

    group: str | None = None
    """Only trees of this group."""
    scorer: str | None = None
    """Scorer that decides where an attempt ends and gives its reward;
    by default env, the imported reward, or the only scorer there is."""
    min_reward: float | None = None
    """Only attempts with at least this reward."""
    successful: bool = False
    """Only attempts that succeeded: by the recorded outcome, or, without one, by a reward above 0."""
    max_rows: int | None = Field(None, ge=1)
    """Stop after this many rows."""


class StepSelection(Selection):
    """Which attempts become rows of tokens, and where their credit comes from."""

    token_values: str = "credit"
    """The per-token values that are the advantages."""
    maker: str | None = None
    """Maker of these values; needed where there are several."""
    rule: str | None = None
    """Credit the attempts now by this rule (a name of ``ramify list credit``, or FILE.py:CLASS),
    instead of reading stored values."""
    clip: float | None = Field(None, gt=0)
    """Clip advantages to plus and minus this."""
    shared: Literal["once", "every"] = "once"
    """Train tokens that several attempts share in the first one's row only, or in every row."""
    zeros: bool = False
    """Keep rows whose advantages are all 0."""


def settings_of(cls: type[Config]) -> dict[str, str]:
    """The settings of a writer, for its options: name -> one line of help."""
    return {name: (info.description or "").replace("\n", " ") for name, info in cls.model_fields.items()}


def attempts(run: Run, selection: Selection) -> Iterator[View]:
    """The chosen attempts, sorted by tree and leaf, one tree in memory at a time.

    Attempts are paths to nodes with a score by the scorer; in a run without scores, to leaves, with the rewards along the path.
    Those broken off by an infrastructure failure are left out and counted: one that was played again continued from there. Raises
    UserError when the scorer or group is unknown.
    """
    if not run.trees(selection.group):
        known = nearest(selection.group or "", {info.group for info in run.trees() if info.group})
        where = "" if selection.group is None else f" in group '{selection.group}' ({known})"
        raise UserError(f"{run.folder} holds no tree{where}")
    deciding = _decider(run, selection)
    for attempt in views(run, selection.group, selection.scorer):
        if attempt.broken_off is not None:
            lost("attempt that a failure ended")
            continue
        if deciding is not None and attempt.score is None:
            continue
        if selection.min_reward is not None and (attempt.reward is None or attempt.reward < selection.min_reward):
            continue
        if not selection.successful or attempt.success:
            yield attempt


def _decider(run: Run, selection: Selection) -> Decider | None:
    found = decider(run, selection.scorer)
    wanted = selection.successful or selection.min_reward is not None
    if wanted and found is None and all(node.reward is None for node in run.each(Node)):
        raise UserError(f"{run.folder} has no scores, so no attempt can be chosen by its reward")
    return found


# --- what stands beside the texts -----------------------------------------------------------------------------------------


def count_compacted(attempt: View) -> None:
    """Count the replies of an attempt whose history differs from the path that is written."""
    lost("compacted context", sum(changed(node) for node, _ in attempt.path.segments))


def count_media(message: Message) -> None:
    """Count the images and other content of a message for which a format has no place."""
    media, parts = message.data.get("media"), message.data.get("content")
    kinds = [one.get("type") for one in media.values()] if isinstance(media, Mapping) else []
    kinds += [part.get("type") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    for kind in map(str, kinds):
        if kind not in ("text", "input_text", "output_text", "refusal", "thinking", "reasoning", "redacted_thinking"):
            lost(next((known for known in ("image", "audio", "video", "file") if known in kind), kind))


def spoken_by(messages: Sequence[Message]) -> Messages:
    """Messages in OpenAI's form, reasoning alongside as ``reasoning_content``; images are counted as not written."""
    made = []
    for message in messages:
        count_media(message)
        made.append(message.to_openai() | ({"reasoning_content": message.reasoning} if message.reasoning else {}))
    return made


# --- rows of tokens ---------------------------------------------------------------------------------------------------


def credited_rows(run: Run, selection: StepSelection) -> Iterator[dict[str, Any]]:
    """Rows of tokens with an advantage for each, one an attempt (more where its context was compacted on the way).

    A row has ``tree``, ``task``, ``leaf``, ``reward``, ``prompt`` (messages before the first reply), ``prompt_ids`` (tokens
    before the first sampled one), ``completion_ids`` (from there to the last trained one, observations included), and per
    completion token, shape (T,): ``env_mask`` (1 where it is trained: sampled, and credited), ``logprobs`` (under the sampling
    distribution) and ``advantages``. Raises UserError where the run has no credit,
    NeedsError on nodes without tokens or log-probs.
    """
    from ramify.train.batch import rows_from_path

    credit_in = _credit(run, selection)
    done: dict[str, int] = {}
    tree: Tree | None = None
    for ended in attempts(run, selection):
        if ended.tree is not tree:
            tree = ended.tree
            credit, done = credit_in(tree), {}
        token_values = _token_values(ended.path, credit, done if selection.shared == "once" else {}, selection.clip)
        messages = [message.to_openai() for message in ended.path.messages()]
        prompt = messages[: next((i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages))]
        for row in rows_from_path(ended.path, run.node, run.context, token_values):
            trained = row.mask & (row.token_values["trained"] > 0)
            trained[:1] = False  # nothing precedes the first token, so nothing predicts it
            advantages = row.token_values["advantages"]
            if not trained.any() or not (selection.zeros or advantages[trained].any()):
                continue
            start = max(1, int(np.argmax(row.mask)))
            shown = slice(start, int(np.flatnonzero(trained)[-1]) + 1)
            yield {
                "tree": ended.tree.name,
                "task": ended.task,
                "leaf": ended.leaf,
                "reward": ended.reward,
                "prompt": prompt,
                "prompt_ids": row.tokens[:start].tolist(),
                "completion_ids": row.tokens[shown].tolist(),
                "env_mask": trained[shown].astype(np.int64).tolist(),
                "logprobs": row.token_values["logprobs"][shown].tolist(),
                "advantages": (advantages * trained)[shown].tolist(),
            }


def _token_values(
    path: TracePath, credit: Mapping[str, np.ndarray], done: dict[str, int], clip: float | None
) -> dict[str, dict[str, np.ndarray]]:
    """By node id: which tokens this attempt trains (those not ``done`` before it), and their advantages. Marks them as done."""
    trained, advantages = {}, {}
    for node, kept in path.segments:
        if node.id not in credit or node.sampled is None:
            continue
        fresh = node.sampled.copy()
        fresh[: done.get(node.id, 0)] = False
        if fresh[:kept].any() and node.logprobs is None:
            raise NeedsError(
                f"node {node.id} carries no log-probs of its sampled tokens: record the run with a model that gives them"
            )
        done[node.id] = max(kept, done.get(node.id, 0))
        trained[node.id] = fresh.astype(np.float32)
        advantages[node.id] = np.clip(credit[node.id], -clip, clip) if clip is not None else credit[node.id]
    return {"trained": trained, "advantages": advantages}


def _credit(run: Run, selection: StepSelection) -> Callable[[Tree], dict[str, np.ndarray]]:
    """Tree -> node id -> credit along its tokens."""
    if selection.rule is not None:
        return _credit_now(run, selection, selection.rule)
    makers = {token_values.maker for token_values in run.each(TokenValues) if token_values.name == selection.token_values}
    if selection.maker is not None and selection.maker not in makers:
        makers = set()
    if not makers:
        by = "" if selection.maker is None else f" by '{selection.maker}'"
        raise UserError(
            f"{run.folder} holds no per-token values '{selection.token_values}'{by}: `ramify improve` stores them as it trains; "
            "for any other run give --rule g2po, which credits the attempts now"
        )
    if len(makers) > 1 and selection.maker is None:
        raise UserError(
            f"per-token values '{selection.token_values}' have several makers: choose one with --maker "
            f"({', '.join(sorted(makers))})"
        )

    def of_tree(tree: Tree) -> dict[str, np.ndarray]:
        found = {s.node: s.values for s in run.token_values(tree=tree.name, name=selection.token_values, maker=selection.maker)}
        for node, values in found.items():
            if not np.isfinite(values).all():
                raise UserError(
                    f"per-token values '{selection.token_values}' of node {node} holds a value that is not a finite number"
                )
        return found

    return of_tree


def _credit_now(run: Run, selection: StepSelection, rule: str) -> Callable[[Tree], dict[str, np.ndarray]]:
    found = assigned(find_rule(rule), CreditGroup.of(run, selection.group, scorer=selection.scorer))
    return lambda tree: {name: found[name] for name in tree.nodes if name in found}


# --- files ------------------------------------------------------------------------------------------------------------


def write_table(path: Path, rows: Iterator[dict[str, Any]], columns: Mapping[str, str], limit: int | None = None) -> int:
    """Write rows as ``.jsonl`` or ``.parquet``, whole or not at all; returns how many.

    ``columns``: name -> text, number, ints, floats, messages or json (JSON lines: the value itself, Parquet: a nested column).
    Raises UserError where there is no row, or the ending is neither.
    """
    if path.suffix.lower() not in (".jsonl", ".parquet"):
        raise UserError(f"cannot write {path}: these rows go into a file that ends in .jsonl or .parquet")
    rows = islice(rows, limit)
    first = next(rows, None)
    if first is None:
        raise UserError("nothing to write: no attempt of the run fits the selection, or none has any credit to give")
    rows = chain([first], rows)
    with whole_file(path) as part:
        return _write_parquet(part, rows, columns) if path.suffix.lower() == ".parquet" else _write_jsonl(part, rows)


def _write_jsonl(path: Path, rows: Iterator[dict[str, Any]]) -> int:
    count = 0
    with path.open("wb") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n")
            count += 1
    return count


def _write_parquet(path: Path, rows: Iterator[dict[str, Any]], columns: Mapping[str, str]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    types = {
        "text": pa.string(),
        "number": pa.float64(),
        "ints": pa.list_(pa.int64()),
        "floats": pa.list_(pa.float32()),
        "messages": pa.list_(message),
        "task": pa.struct([("task", pa.string()), ("index", pa.int64())]),
        "truth": pa.struct([("style", pa.string()), ("ground_truth", pa.string())]),
    }
    schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
    spoken = [name for name, kind in columns.items() if kind == "messages"]
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while batch := list(islice(rows, _BATCH)):
            for row in batch:
                if any(m.keys() - {"role", "content"} for name in spoken for m in row[name]):
                    raise UserError(
                        "messages with tool calls or reasoning do not fit one Parquet column: write JSON lines (.jsonl)"
                    )
            writer.write_table(pa.Table.from_pylist(_utf8(batch), schema=schema))
            count += len(batch)
    return count


def _utf8(value: Any) -> Any:
    """``value`` with text that UTF-8 cannot express replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {k: _utf8(v) for k, v in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], (str, dict)):
        return [_utf8(v) for v in value]
    return value
