"""Stems of a scan from attempts that lie in a run or another tool's log: the last reply of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import NeedsError, UserError
from ramify.methods.cliffs.traces import sampling_of
from ramify.model.chat import ChatTemplate
from ramify.model.protocol import Sampling, Tokenizer
from ramify.rollout.token_traces import TokenTrace
from ramify.score.trajectories import chat_layout
from ramify.trace.db import Run
from ramify.trace.failures import failures
from ramify.trace.formats import formats
from ramify.trace.lines import first_record
from ramify.trace.node import Node
from ramify.trace.sources import opened, run_folder
from ramify.trace.view import View, views


def is_token_file(path: Path, form: str | None = None) -> bool:
    """Whether a source holds traces as this method writes them, or nothing else that is known."""
    if form is not None or run_folder(path) is not None:
        return False
    first = first_record(path)[1] or {}
    return bool({"response_ids", "response", "sampler"} & first.keys()) or not (path.is_dir() or formats(path))


def read_stems(
    source: Path,
    form: str | None,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    sampling: Sampling,
    retokenise: bool = False,
) -> tuple[list[TokenTrace], dict[str, str]]:
    """The last reply of every attempt of a run or log, and why attempts were left out, by the node they end at.

    What the verifier needs is the task's data, ``answer`` the ``target`` of a log that has no answer. A reply is sampled on with
    the settings that are stored of it, those of ``sampling`` where none are. Attempts of text alone are rendered by ``template``
    and encoded where ``retokenise`` says so. Raises UserError where nothing is left.
    """
    found, left_out = [], dict[str, str]()
    with opened(source, form) as run:
        tasks = {info.name: info.task.get("data") for info in run.trees()}
        for attempt in views(run, unjudged=True):
            try:
                found.append(_stem(run, attempt, tasks, tokenizer, template, sampling, retokenise))
            except NeedsError as error:
                left_out[attempt.leaf] = str(error)
        if not found:
            why = "" if failures(run).all else f": {next(iter(left_out.values()), 'it holds no attempt')}"
            raise UserError(f"{source} holds no reply to scan{why}")
    return found, left_out


def _stem(
    run: Run,
    attempt: View,
    tasks: Mapping[str, Any],
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    sampling: Sampling,
    retokenise: bool,
) -> TokenTrace:
    """The last reply of one attempt. Raises NeedsError saying why it cannot be one."""
    path = attempt.path
    if attempt.failure is not None:
        raise NeedsError(f"the attempt failed: {attempt.failure}")
    replies = [node for node, _ in path.segments if node.role == "assistant"]
    if not replies:
        raise NeedsError("nobody replied in it")
    reply = replies[-1]
    if reply.context is not None:
        raise NeedsError("its model was shown another context than the path")
    logprobs = None
    if any(node.tokens is None and len(node) for node, _ in path.segments):
        prompt, response = _encoded(attempt, template, retokenise)
    else:
        sampled = np.flatnonzero(path.sampled)
        if not len(sampled):
            raise NeedsError("none of its tokens was sampled")
        stop = int(sampled[-1]) + 1
        gaps = np.flatnonzero(np.diff(sampled) > 1)
        start = int(sampled[gaps[-1] + 1] if len(gaps) else sampled[0])
        prompt, response = path.tokens[:start].tolist(), path.tokens[start:stop].tolist()
        if reply.text.strip() not in tokenizer.decode(response) and reply.opens:
            raise NeedsError("its token ids belong to another tokenizer than the model's")
        scored = path.logprobs[start:stop]
        logprobs = tuple(scored.tolist()) if np.isfinite(scored).all() else None
    if not prompt or not response:
        raise NeedsError("its prompt or its last reply is empty")
    settings = _sampling(run, reply, sampling, template)
    data = tasks.get(attempt.tree.name)
    return TokenTrace(
        id=attempt.leaf[:12],
        problem_id=attempt.task,
        prompt_ids=tuple(prompt),
        response_ids=tuple(response),
        sampler=replace(settings, max_tokens=max(settings.max_tokens, len(response))),
        stop=reply.stop if reply.stop in ("eos", "stop", "length") else "eos",
        data=_answered(data if isinstance(data, Mapping) else {}),
        logprobs=logprobs,
    )


def _encoded(attempt: View, template: ChatTemplate | None, retokenise: bool) -> tuple[list[int], list[int]]:
    """Prompt and reply of an attempt of text, as the template renders them."""
    if not retokenise:
        raise NeedsError(
            "its replies are text only; the tokens that were sampled are needed, or --retokenise encodes the text anew"
        )
    if template is None:
        raise NeedsError("its messages are text only and the model has no chat template to lay them out")
    messages = attempt.path.messages()
    while messages and messages[-1].role != "assistant":
        messages.pop()
    pieces = chat_layout(template)(messages)
    last = max(i for i, (_, is_action) in enumerate(pieces) if is_action)
    return [token for tokens, _ in pieces[:last] for token in tokens], list(pieces[last][0])


def _sampling(run: Run, reply: Node, given: Sampling, template: ChatTemplate | None) -> Sampling:
    """The settings a reply was sampled with, as far as they are stored."""
    stored = run.provenance(reply.provenance).settings if reply.provenance is not None else {}
    known = {f.name for f in fields(Sampling)} - {"until", "seeded"}
    settings = {name: value for name, value in stored.items() if name in known and value is not None}
    try:
        made = sampling_of({name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()})
    except UserError:  # another tool's settings may mean something else by a name
        settings, made = {}, given
    made = replace(made, **{name: getattr(given, name) for name in known - settings.keys()})
    return made if made.stop_tokens or template is None else replace(made, stop_tokens=tuple(template.stop_tokens))


def _answered(data: Mapping[str, Any]) -> dict[str, Any]:
    target = data.get("target")
    first = target[0] if isinstance(target, list) and target else target
    return dict(data) if "answer" in data or first is None else {**data, "answer": first}
