"""TRL's rows in and out: conversations for SFT, tokens with an advantage each for GRPO;
completions with rewards, and preferences, in.

Training on what is written here is in :mod:`ramify.integrations.trainers.trl_trainer`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from ramify.base.config import check
from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.base.words import plural
from ramify.integrations.trainers.reading import SINGLE, Forest, add_records, messages, number, read_records
from ramify.integrations.trainers.rows import (
    Selection,
    StepSelection,
    attempts,
    count_compacted,
    credited_rows,
    settings_of,
    spoken_by,
    write_table,
)
from ramify.trace.aliases import IMPORTED, KNOWN, RECORD, Fields
from ramify.trace.db import Run
from ramify.trace.formats import Reader, Writer
from ramify.trace.jsonl import new_run
from ramify.trace.lines import field, parquet_columns
from ramify.trace.message import refuse_unknown
from ramify.trace.notes import noting
from ramify.trace.offered import tools_of

PREFERENCE = "preference"
"""Scorer name for a preference row: 1 for the chosen completion, 0 for the rejected one."""
STEP_COLUMNS = {
    **dict.fromkeys(("tree", "task", "leaf"), "text"),
    "reward": "number",
    "prompt": "messages",
    **dict.fromkeys(("prompt_ids", "completion_ids", "env_mask"), "ints"),
    **dict.fromkeys(("logprobs", "advantages"), "floats"),
}
"""Columns of a per-step-advantage row. The token columns have the names that a ``rollout_func`` of TRL's GRPOTrainer returns."""


class SftSettings(Selection):
    """Settings of ``trl-sft``."""

    form: Literal["messages", "prompt-completion"] = "messages"
    """One row an attempt (messages), or one row a reply, with what was shown before it (prompt-completion)."""


def write_sft(run: Run, out: Path, **settings: Any) -> int:
    """Write conversational rows for TRL's SFTTrainer; returns how many. ``settings`` are those of :class:`SftSettings`.

    Raises UserError on bad settings and where nothing fits them.
    """
    chosen = check(SftSettings, settings, "trl-sft")
    columns = {"messages": "messages"} if chosen.form == "messages" else {"prompt": "messages", "completion": "messages"}
    table = out.suffix.lower() == ".parquet"
    with noting():  # what is left out is counted where the rows are made
        if table and any(tools_of(run, ended) for ended in attempts(run, chosen)):
            columns["tools"] = "text"
    return write_table(out, _conversations(run, chosen, as_text=table), columns, chosen.max_rows)


def _conversations(run: Run, chosen: SftSettings, as_text: bool) -> Iterator[dict[str, Any]]:
    """The rows; ``as_text``: the tools' schemas as JSON text, which one column of a table holds."""
    for ended in attempts(run, chosen):
        chat = spoken_by(ended.path.messages())
        offered = tools_of(run, ended)
        tools: dict[str, Any] = {"tools": json.dumps(offered) if as_text else offered} if offered else {}
        replies = [i for i, m in enumerate(chat) if m["role"] == "assistant"]
        if not replies:
            continue
        if chosen.form == "messages":
            count_compacted(ended)
            yield {"messages": chat[: replies[-1] + 1], **tools}
            continue
        contexts = _contexts(run, ended.path.segments)
        for reply, context in zip(replies, contexts, strict=True):
            yield {"prompt": chat[:reply] if context is None else context, "completion": [chat[reply]], **tools}


def _contexts(run: Run, segments: Any) -> list[list[dict[str, Any]] | None]:
    """For each reply on a path what it was shown, None where that is the path itself."""
    found: list[list[dict[str, Any]] | None] = []
    for node, _ in segments:
        if node.role == "assistant" and (node.opens or not found):
            found.append(None if node.context is None else spoken_by(run.shown(node.id).messages))
    return found


def write_steps(run: Run, out: Path, **settings: Any) -> int:
    """Write rows of tokens with an advantage each; returns how many. ``settings`` are those of :class:`StepSelection`.

    Raises UserError where the run has no credit or nothing fits, NeedsError on attempts without tokens or log-probs.
    """
    chosen = check(StepSelection, settings, "trl-steps")
    return write_table(out, credited_rows(run, chosen), STEP_COLUMNS, chosen.max_rows)


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Rows written by ``trl-steps``, checked. Raises UserError naming the file, the row and the column that is wrong."""
    rows = []
    for where, row in read_records(path):
        check_steps(row, where)
        rows.append(row)
    if not rows:
        raise UserError(f"{path} holds no row")
    return rows


def check_steps(row: Mapping[str, Any], where: str) -> None:
    """Raises UserError unless ``row`` has tokens, mask, log-probs and advantages that fit together and are finite numbers."""
    record = dict(row)
    if not field(record, "prompt_ids", list, where):
        raise UserError(f"{where}: 'prompt_ids' is empty")
    length = len(field(record, "completion_ids", list, where))
    if not length:
        raise UserError(f"{where}: 'completion_ids' is empty")
    for name in ("prompt_ids", "completion_ids", "env_mask"):
        if any(type(value) is not int or value < 0 for value in field(record, name, list, where)):
            raise UserError(f"{where}: '{name}' holds something that is not a token id" + " (0 or 1)" * (name == "env_mask"))
    if set(record["env_mask"]) - {0, 1}:
        raise UserError(f"{where}: 'env_mask' holds something else than 0 and 1")
    for name in ("logprobs", "advantages"):
        for at, value in enumerate(field(record, name, list, where)):
            if isinstance(value, bool) or number(value, f"{where}: '{name}'[{at}]", SINGLE) is None:
                raise UserError(f"{where}: '{name}'[{at}] is not a finite number")
    for name in ("env_mask", "logprobs", "advantages"):
        if len(record[name]) != length:
            raise UserError(
                f"{where}: '{name}' has {plural(len(record[name]), 'entry')} for {plural(length, 'completion token')}"
            )


def read_trl(path: Path, folder: Path, fields: Fields = KNOWN) -> int:
    """Make a run in ``folder`` from rows of TRL: prompt and completion, chosen and rejected, messages; returns how many.

    Texts become one message each. The reward under any name of :mod:`ramify.trace.aliases`, ``rewards`` (by name or in order),
    ``label`` and, in the logs of ``log_completions``, every other column of numbers become scores; ``advantage`` becomes
    per-token values. Rows of one prompt are one task, unless they name theirs. Raises UserError naming file and row.
    """
    with new_run(folder, {"imported": {"form": "trl", "file": path.name}}) as run:
        forest = Forest(run, "trl")
        return add_records(run, [path], lambda record, where: _add(forest, record, where, fields))


_TAKEN = ("prompt", "completion", "messages", "chosen", "rejected", "step", "advantage", "reward", "rewards", "label")


def _add(forest: Forest, record: dict[str, Any], where: str, fields: Fields) -> None:
    step = field(record, "step", int, where, None)
    found = fields.task_of(record, where, record_id=False)  # an id is the row's: rows of one prompt have several
    task = None if found is None else str(found.value)
    logged = (
        "advantage" in record and "step" in record
    )  # of a log of completions: each other column of numbers is a reward function's
    kept = {k: v for k, v in record.items() if k == "reward"} if logged and fields.reward is None else record
    judged = fields.judged(kept, where)
    taken = {*_TAKEN, *judged.names, *([found.name] if found else ())}
    rest = {k: v for k, v in record.items() if k not in taken and v is not None}
    if "chosen" in record or "rejected" in record:
        sides = {side: messages(record.get(side), "assistant", f"{where}: '{side}'") for side in ("chosen", "rejected")}
        shared = 0
        prompt = messages(record["prompt"], "user", f"{where}: 'prompt'") if record.get("prompt") is not None else []
        if not prompt:  # the prompt is what both begin with
            pairs = zip(sides["chosen"][:-1], sides["rejected"][:-1], strict=False)
            shared = next((i for i, (a, b) in enumerate(pairs) if a != b), min(map(len, sides.values())) - 1)
            prompt = sides["chosen"][: max(0, shared)]
        for side, value in (("chosen", 1.0), ("rejected", 0.0)):
            scores: dict[str, Any] = {PREFERENCE: value}
            if f"score_{side}" in rest:
                scores[IMPORTED] = number(rest[f"score_{side}"], f"{where}: 'score_{side}'")
            replies = sides[side][len(prompt) if shared else 0 :]
            forest.add(prompt, replies, where, task=task, step=step, scores=scores, record=rest)
        return
    if "completion" in record:
        if "prompt" not in record and task is None and not logged:  # else several tasks would be one
            refuse_unknown(rest, RECORD, where, "'prompt' nor a task")
        prompt = messages(record.get("prompt") or [], "user", f"{where}: 'prompt'")
        completion = messages(record["completion"], "assistant", f"{where}: 'completion'")
    elif "messages" in record:
        replies = field(record, "messages", list, where)
        first = next(
            (i for i, m in enumerate(replies) if isinstance(m, Mapping) and m.get("role") == "assistant"),
            max(0, len(replies) - 1),
        )
        prompt, completion = replies[:first], replies[first:]
    else:
        raise UserError(
            f"{where}: a TRL row has 'prompt' and 'completion', 'chosen' and 'rejected', or 'messages'; "
            f"this one has {', '.join(map(repr, list(record)[:8])) or 'nothing'}"
        )
    scores, rest = _scores(record, dict(judged.scores), rest, logged, where)
    advantage = record.get("advantage")
    forest.add(prompt, completion, where, task=task, step=step, scores=scores, advantage=advantage, record=rest, judged=judged)


def _scores(
    record: dict[str, Any], scores: dict[str, Any], rest: dict[str, Any], logged: bool, where: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Scorer -> value, more than the ``scores`` that every format may have, and what is left of the row."""
    rewards = record.get("rewards")
    if isinstance(rewards, Mapping):
        scores |= {str(name): value for name, value in rewards.items()}
    elif isinstance(rewards, list):
        scores |= {f"reward-{i}": value for i, value in enumerate(rewards)}
    elif rewards is not None:
        scores[IMPORTED] = number(rewards, f"{where}: 'rewards'")
    if record.get("label") is not None:
        scores["label"] = field(record, "label", bool, where)
    if logged:
        named = {k for k, v in rest.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
        scores |= {k: rest[k] for k in rest if k in named}
        rest = {k: v for k, v in rest.items() if k not in named}
    return scores, rest


def _is_trl(path: Path, first: Mapping[str, Any] | None) -> bool:
    names = set(first) if first is not None else parquet_columns(path)
    if {
        "data_source",
        "reward_model",
        "attempt_id",
        "kind",
        "example_id",
        "conversations",
    } & names:  # verl's, steps, a run, verifiers', ShareGPT'
        return False
    return "completion" in names or {"chosen", "rejected"} <= names or (first is None and "messages" in names)


register("reader", "trl")(
    Reader(
        "trl",
        "Rows of TRL, JSON lines or Parquet: prompt and completion (with rewards), chosen and rejected, logged completions.",
        _is_trl,
        read_trl,
        ("task", "reward"),
        '{"prompt": "1+2?", "completion": "3", "reward": 1.0}\n',
    )
)
register("writer", "trl-sft")(
    Writer("trl-sft", "conversations for TRL's SFTTrainer (.jsonl or .parquet)", write_sft, (), settings_of(SftSettings))
)
register("writer", "trl-steps")(
    Writer(
        "trl-steps",
        "the tree's own tokens with an advantage each, for TRL's GRPOTrainer (.jsonl or .parquet)",
        write_steps,
        (),
        settings_of(StepSelection),
    )
)
