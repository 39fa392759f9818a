"""Prompts that drafters are trained, calibrated and measured on: a user's file or run, or what the built-in model knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.files import reason
from ramify.base.seeds import generator
from ramify.engine.checkpoints import chat_template, model_folder
from ramify.engine.local import LocalModel
from ramify.model.chat import ChatTemplate, RawTemplate
from ramify.model.rendered import laid_out
from ramify.rollout.token_traces import read_problems
from ramify.trace.context import seen, whole_tokens
from ramify.trace.db import Run
from ramify.trace.sources import run_folder

SPLITS = {"train": "train", "calibrate": "tune", "test": "eval"}
"""Splits of the household environment for each use of prompts."""


def of_target(target: str, n: int, seed: int, part: str) -> list[np.ndarray]:
    """``n`` prompts for ``builtin``, which needs no file: half-played households. Raises UserError for any other target."""
    if target == "builtin":
        return households(chat_template(model_folder(target)), n, seed, part)
    raise UserError(
        f"'{target}' needs prompts of its own: give --prompts FILE (JSON lines with prompt or prompt_ids, or a text a line)"
    )


def households(template: ChatTemplate, n: int, seed: int, part: str) -> list[np.ndarray]:
    """Dialogues with the household environment as its demonstrators lead them, cut before a turn of the assistant."""
    from ramify.env.builtin import household

    tasks = household.HouseholdEnvironment().task_set(SPLITS[part], n, seed)
    found = []
    for i, task in enumerate(tasks):
        rng = generator(seed, "dspark", "household", part, i)
        turns = household.demonstrate(task, 0.3, rng)
        cut = int(rng.integers(len(turns)))
        tokens: list[int] = []
        for request, action in turns[:cut]:
            tokens += [*template.render("user", request)[0], *template.render("assistant", action)[0]]
        found.append(np.array([*tokens, *template.render("user", turns[cut][0])[0], *template.open("assistant")], np.int32))
    return found


def of_run(folder: Path) -> list[np.ndarray]:
    """What the agent of a run was shown before each of its replies, as token ids, each prompt once.

    Raises UserError where no reply has token ids: of a chat endpoint, or imported as text.
    """
    found: dict[bytes, np.ndarray] = {}
    with Run.open(folder) as run:
        for info in run.trees():
            tree = run.tree(info.name)
            for node in tree.nodes.values():
                if node.role == "assistant" and node.opens and node.sampled is not None and node.sampled.any():
                    row = whole_tokens(seen(tree.path(node.id).upto(node.head), tree.node, run.context))
                    found.setdefault(row.tobytes(), row)
    if not found:
        raise UserError(f"{folder} holds no reply with token ids, so there is nothing to draft after")
    return list(found.values())


def from_file(file: Path, model: LocalModel, template: ChatTemplate | None, raw: bool = False) -> list[np.ndarray]:
    """Prompts of a ``.jsonl`` file (``prompt``, ``prompt_ids``), or each line of any other that is not blank; of a run, by folder
    or name, what its agent was shown before each of its replies (:func:`of_run`).

    A text becomes one user message of ``template``, or stays as it is with ``raw`` or without one.
    Raises UserError naming file and line.
    """
    folder = run_folder(file)
    if folder is not None:
        return of_run(folder)
    shown: Any = template
    if raw or template is None:
        if model.tokenizer is None:
            raise UserError(f"'{model.name}' has no tokenizer: give prompts as prompt_ids")
        shown = RawTemplate(model.tokenizer)
    if file.suffix == ".jsonl":
        return [np.array(one.prompt_ids, np.int32) for one in read_problems(file, shown)]
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {reason(error)}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            ids = laid_out(shown, [("user", line)])
            if not ids:
                raise UserError(f"{file}:{number} has no token")
            found.append(np.array(ids, np.int32))
    if not found:
        raise UserError(f"{file} holds no prompt")
    return found
