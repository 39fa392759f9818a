"""Attempts as token rows with their actions marked: what a grader that reads log-probs needs,
from a run, JSON lines or plain lists.

An attempt as JSON has ``task_id``, optionally ``trial``, ``reward`` and ``success`` (in ``outcome`` or alongside it; under any
name of :mod:`ramify.trace.aliases`) and ``policy_id``, and one of three forms:
``steps: [{role, token_ids, is_action}]``; ``messages`` (laid out by the policy's chat template); or one row of a trainer,
``prompt_ids``, ``completion_ids``, ``env_mask`` and, where it was stored,
``old_log_probs`` and ``ref_log_prob``, under the names TRL and verl use.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ramify.base import verdicts
from ramify.base.errors import NeedsError, UserError, nearest
from ramify.base.words import plural
from ramify.trace.aliases import IMPORTED, KNOWN, required
from ramify.trace.formats import formats
from ramify.trace.lines import at_place, field, first_record, read_lines
from ramify.trace.message import Message, read_message
from ramify.trace.sources import opened, run_folder
from ramify.trace.view import messages_of, views

if TYPE_CHECKING:
    from ramify.model.chat import ChatTemplate
    from ramify.trace.db import Run
    from ramify.trace.path import Path as TracePath

_COMPLETION, _MASK = ("completion_ids", "response_ids"), ("env_mask", "response_mask", "action_mask")
_POLICY = ("old_log_probs", "old_per_token_logps", "policy_logprobs")
_REFERENCE = ("ref_log_prob", "ref_per_token_logps", "ref_logprobs")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Trajectory:
    """One attempt. A step is one action (an agent's message: text and tool calls); everything else is what it was shown."""

    id: str
    task: str
    tokens: np.ndarray
    """int32 (T,): the whole row of ids, as the policy saw it."""
    step: np.ndarray
    """int32 (T,): which step each token belongs to, 0 to n-1; -1 for tokens that are not action."""
    n: int
    """How many steps there are, those without a token included."""
    reward: float | None = None
    success: bool | None = None
    """None where nobody said how the attempt ended."""
    policy_logprobs: np.ndarray | None = None
    """float32 (T,) that a trainer stored, or None. Only under the model itself: temperature 1, nothing cut."""
    reference_logprobs: np.ndarray | None = None
    actions: tuple[str, ...] = ()
    """Text of each step where it is known."""
    nodes: tuple[str, ...] = ()
    """Node of a run that each step ends at, where it comes from a run."""
    policy: str = ""
    """Who acted, where that was said."""

    def __repr__(self) -> str:
        return f"Trajectory({self.id!r}, {len(self.tokens)} tokens, {self.n} steps)"


class MessageLayout(Protocol):
    """Lays messages out as (token ids, is an action) pieces."""

    def __call__(self, messages: Sequence[Message]) -> list[tuple[Sequence[int], bool]]:
        """Pieces of the messages in order."""
        ...


def trajectory(
    id: str,
    task: str,
    steps: Sequence[tuple[Sequence[int] | np.ndarray, bool]],
    reward: float | None = None,
    success: bool | None = None,
    actions: Sequence[str] = (),
    nodes: Sequence[str] = (),
) -> Trajectory:
    """An attempt from (token ids, is an action) pieces in order. An empty action is a step of its own with no token.

    Raises UserError where no piece is an action: without them a grade would be that of what the agent was shown.
    """
    pieces = [np.asarray(ids, np.int32) for ids, _ in steps]
    marks, n = [], 0
    for piece, (_, is_action) in zip(pieces, steps, strict=True):
        marks.append(np.full(len(piece), n if is_action else -1, np.int32))
        n += bool(is_action)
    if not n:
        raise UserError(f"attempt '{id}' marks no step as an action (is_action), so there is nothing to grade")
    tokens = np.concatenate(pieces)
    if not len(tokens):
        raise UserError(f"attempt '{id}' holds no token")
    if success is None and reward is not None:
        success = reward > 0
    return Trajectory(id, task, tokens, np.concatenate(marks), n, reward, success, actions=tuple(actions), nodes=tuple(nodes))


@dataclass(frozen=True)
class ChatLayout:
    """Messages by a chat template. Of a reply its content and calls are the action;
    headers and the end of turn are the template's.

    Raises NeedsError, when it is called, on messages that the template cannot lay out one after the other.
    """

    template: ChatTemplate

    def __call__(self, messages: Sequence[Message]) -> list[tuple[Sequence[int], bool]]:
        """See :class:`MessageLayout`."""
        pieces: list[tuple[Sequence[int], bool]] = []
        after = ""
        for message in messages:
            tokens, ends, content = self.template.render(message.role, message.written(), after)
            after = message.role
            if message.role != "assistant":
                pieces.append((tokens, False))
                continue
            start = next((i for i, end in enumerate(ends) if end > 0), len(tokens))
            stop = next((i + 1 for i, end in enumerate(ends) if i >= start and end >= len(content)), start)
            while stop > start > 0 and self.template.tokenizer.decode(tokens[:start]).endswith("\ufffd"):
                start -= 1  # the first bytes of a character that several tokens spell
            pieces += [(tokens[:start], False), (tokens[start:stop], True), (tokens[stop:], False)]
        return pieces


def chat_layout(template: ChatTemplate) -> ChatLayout:
    """The layout of a chat template; see :class:`ChatLayout`."""
    return ChatLayout(template)


def plain_layout(tokenizer: Any) -> MessageLayout:
    """Messages as the paper's code writes them: ``\\n[role]: content`` and ``tool_call(name, args)``,
    no template, no system prompt.

    The marker counts to the action, as it does there. Raises UserError without a tokenizer.
    """
    if tokenizer is None:
        raise UserError("the policy brings no tokenizer (tokenizer.json), so messages cannot be rendered as tokens")

    def layout(messages: Sequence[Message]) -> list[tuple[Sequence[int], bool]]:
        raw = getattr(tokenizer, "raw", None)
        first = [] if raw is None else list(raw.encode("", add_special_tokens=True).ids)  # a BOS, where the tokenizer has one
        pieces: list[tuple[Sequence[int], bool]] = [(first, False)] if first else []
        for m in messages:
            calls = "".join(f"\ntool_call({name}, {json.dumps(given, ensure_ascii=False)})" for name, given in m.functions)
            if m.role != "system":
                pieces.append((tokenizer.encode(f"\n[{m.role}]: {m.text}{calls}"), m.role == "assistant"))
        return pieces

    return layout


def read_trajectories(path: Path, layout: MessageLayout | None = None, skipped: list[str] | None = None) -> list[Trajectory]:
    """Attempts of a file of JSON lines. ``layout`` renders messages; without it attempts in that form are refused.

    Raises UserError naming the file and line of what does not fit, and where two attempts have one task and trial. An attempt
    whose messages the chat template cannot lay out is added to ``skipped``, one sentence each, where that list is given.
    """
    by_name: dict[str, Trajectory] = {}
    trials: dict[str, int] = {}
    for number, record in read_lines(path):
        where = f"{path}:{number}"
        with at_place(where):
            task = str(required(KNOWN.task_of(record, where), record, "task", where).value)
            named = KNOWN.attempt_of(record, where)
            trial = trials.get(task, 0) if named is None else named.value
            trials[task] = trials.get(task, 0) + 1
            name = f"{task}/{trial}"
            if name in by_name:
                raise UserError(f"attempt '{name}' is there twice")
            who = field(record, "policy_id", str, where, "")
            try:
                by_name[name] = replace(_read(record, name, task, where, layout), policy=who)
            except NeedsError as error:
                if skipped is None:
                    raise UserError(str(error)) from error
                skipped.append(f"attempt '{name}' ({where}): {error}")
    if not by_name and not skipped:
        raise UserError(f"{path} holds no attempt")
    return list(by_name.values())


def _read(record: dict[str, Any], name: str, task: str, where: str, layout: MessageLayout | None) -> Trajectory:
    outcome = field(record, "outcome", dict, where, {})
    reward = field(outcome, "reward", (float, int), f"{where}: 'outcome'", None)
    success = field(outcome, "success", bool, f"{where}: 'outcome'", None)
    judged = KNOWN.judged(record, where)
    reward = judged.scores.get(IMPORTED) if reward is None else reward
    success = judged.success if success is None else success
    if reward is not None and not math.isfinite(reward):
        raise UserError(f"'reward' is {reward}, not a finite number")
    if "steps" in record:
        steps = field(record, "steps", list, where)
        pieces = [_piece(step, f"{where}: step {i}") for i, step in enumerate(steps)]
        return trajectory(name, task, pieces or [((), False)], reward, success)
    if "prompt_ids" in record:
        return _flat(record, name, task, where, reward, success)
    if "messages" not in record:
        forms = "'steps' (with token_ids and is_action), 'messages', or 'prompt_ids' with 'completion_ids' and 'env_mask'"
        raise UserError(f"an attempt has {forms}; this one has {', '.join(map(repr, list(record)[:8]))}")
    messages = [read_message(m, f"{where}: message {i}") for i, m in enumerate(field(record, "messages", list, where))]
    return _from_messages(name, task, messages, reward, success, layout)


def _piece(step: Any, spot: str) -> tuple[list[int], bool]:
    if not isinstance(step, dict):
        raise UserError(f"{spot} is not an object")
    if "is_action" not in step:
        raise UserError(
            f"{spot} has no 'is_action': without the mask observations would be graded ({nearest('is_action', step)})"
        )
    return _ids(step, "token_ids", spot), field(step, "is_action", bool, spot)


def _ids(record: dict[str, Any], name: str, spot: str) -> list[int]:
    ids: list[int] = field(record, name, list, spot)
    if any(type(token) is not int or not 0 <= token < 1 << 31 for token in ids):
        raise UserError(f"{spot}: '{name}' holds something that is not a token id")
    return ids


def _flat(record: dict[str, Any], name: str, task: str, where: str, reward: float | None, success: bool | None) -> Trajectory:
    """A trainer's row: every stretch of 1 in its mask is a step."""
    prompt = _ids(record, "prompt_ids", where)
    completion = _ids(record, next((n for n in _COMPLETION if n in record), _COMPLETION[0]), where)
    if (mask_name := next((n for n in _MASK if n in record), None)) is None:
        raise UserError(f"the mask of actions is missing ('{_MASK[0]}', 1 for each token the agent sampled)")
    mask = np.array([0, *_row(record, mask_name, len(completion), where)], dtype=np.float64)
    if not set(mask.tolist()) <= {0, 1}:
        raise UserError(f"'{mask_name}' holds something else than 0 and 1")
    starts = np.diff(mask) == 1
    step = np.where(mask[1:] == 1, np.cumsum(starts) - 1, -1)
    if not starts.any():
        raise UserError(f"'{mask_name}' marks no token, so there is nothing to grade")
    if reward is None and record.get("reward") is not None:
        reward = float(field(record, "reward", (float, int), where))
    if success is None and reward is not None:
        success = reward > 0
    stored: list[np.ndarray | None] = []
    for names in (_POLICY, _REFERENCE):
        known = next((n for n in names if record.get(n) is not None), None)
        values = None if known is None else [*[0.0] * len(prompt), *_row(record, known, len(completion), where)]
        stored.append(None if values is None else np.array(values, np.float32))
    policy, reference = stored
    tokens = np.array([*prompt, *completion], np.int32)
    steps = np.concatenate([np.full(len(prompt), -1), step]).astype(np.int32)
    return Trajectory(name, task, tokens, steps, int(starts.sum()), reward, success, policy, reference)


def _row(record: dict[str, Any], name: str, length: int, where: str) -> list[float]:
    values: list[float] = field(record, name, list, where)
    if len(values) != length:
        raise UserError(f"'{name}' has {plural(len(values), 'entry')} for {plural(length, 'completion token')}")
    for at, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(f"'{name}'[{at}] is not a number")
    return values


def _from_messages(
    name: str,
    task: str,
    messages: Sequence[Message],
    reward: float | None,
    success: bool | None,
    layout: MessageLayout | None,
    nodes: Sequence[str] = (),
) -> Trajectory:
    if layout is None:
        raise UserError(f"attempt '{name}' has messages only, and no model was named whose template and tokenizer lay them out")
    actions = [message.written() for message in messages if message.role == "assistant"]
    return trajectory(name, task, layout(messages) or [((), False)], reward, success, actions, nodes)


def load_trajectories(
    source: Path, layout: MessageLayout | None = None, scorer: str | None = None, form: str | None = None
) -> tuple[list[Trajectory], list[str]]:
    """The attempts of a file (:func:`read_trajectories`), a run's folder or a file that can be imported
    (:func:`run_trajectories`, of the format ``form``, by default told from the content), and why others were skipped."""
    if form is None and run_folder(source) is None and not source.is_dir():
        first = first_record(source)[1]
        if (first is not None and "task_id" in first) or not formats(source):
            if scorer is not None:
                raise UserError(f"{source} is not a run but a file of attempts, so --scorer does not apply")
            skipped: list[str] = []
            return read_trajectories(source, layout, skipped), skipped
    with opened(source, form) as run:
        return run_trajectories(run, layout, scorer=scorer)


def run_trajectories(
    run: Run, layout: MessageLayout | None = None, group: str | None = None, scorer: str | None = None
) -> tuple[list[Trajectory], list[str]]:
    """The attempts of a run and, one sentence each, those that cannot be graded.

    An attempt is a path to a node with a score by ``scorer`` (to a leaf, in trees without one). Where nodes have tokens these are
    the row, and the sampled ones the actions; attempts of text alone are laid out by ``layout``. How one would have ended whose
    last reply was cut by its limit of tokens is not known. Raises UserError when there is no attempt.
    """
    trajectories, skipped = [], []
    for attempt in views(run, group, scorer):
        try:
            if attempt.broken_off is not None:
                raise NeedsError("an infrastructure failure cut it off")
            task = attempt.cohort if group is None else attempt.task
            reward, success = attempt.reward, attempt.success
            if attempt.path.cut and success is not None:
                verdicts.left_open(attempt.leaf)
                reward = success = None
            trajectories.append(path_trajectory(attempt.path, task, reward, success, layout))
        except (NeedsError, UserError) as error:
            skipped.append(f"attempt {attempt.leaf}: {error}")
    if not trajectories and not skipped:
        raise UserError(f"{run.folder} holds no attempt" + ("" if group is None else f" in group '{group}'"))
    return trajectories, skipped


def path_trajectory(
    path: TracePath, task: str, reward: float | None = None, success: bool | None = None, layout: MessageLayout | None = None
) -> Trajectory:
    """The attempt that ends at a path's last node. Where nodes have tokens the sampled ones are actions; text is laid out by
    ``layout``.

    Raises NeedsError where a model was shown something else than the path, UserError where there is nothing to grade.
    """
    leaf, messages = path.segments[-1][0].id, messages_of(path)
    replies = [message for message in messages if message.role == "assistant"]
    if any(reply.viewed for reply in replies):
        raise NeedsError("its model was shown another context than the path, so one row of tokens does not hold it")
    if any(node.tokens is None and len(node) for node, _ in path.segments):
        ends = [reply.nodes[-1].id for reply in replies]
        return _from_messages(leaf, task, [message.message for message in messages], reward, success, layout, ends)
    tokens = path.tokens
    step = np.full(len(tokens), -1, np.int32)
    nodes: list[str] = []
    actions: list[str] = []
    for reply in replies:
        if reply.sampled is not None and reply.sampled.any():  # a reply that was given (in a prompt) is not an action
            step[reply.start + np.flatnonzero(reply.sampled)] = len(nodes)
            nodes.append(reply.nodes[-1].id)
            actions.append(reply.text)
    if not nodes:
        raise UserError("it holds no sampled token, so there is nothing to grade")
    success = reward > 0 if success is None and reward is not None else success
    return Trajectory(leaf, task, tokens, step, len(nodes), reward, success, None, None, tuple(actions), tuple(nodes))
