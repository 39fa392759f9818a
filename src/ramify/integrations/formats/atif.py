"""The Agent Trajectory Interchange Format (ATIF) of Harbor, in and out: trajectories of version 1, written as 1.8.

A step of the agent is a reply with its calls; its observations are messages of role tool, or of the user where nothing called
them. A subagent's trajectory that stands in the file is a tree of its own, and the node that called it names where it ended.
Token ids become those of the replies; where every prompt's are there too and continue one another, of the whole path. The task
and the outcome stand in Harbor's ``result.json`` beside the trajectory, or one folder above.
"""

from __future__ import annotations

import base64
import json
import mimetypes
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.config import check
from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.base.registry import register
from ramify.base.secrets import redact
from ramify.integrations.formats.exchanges import Media, list_of, object_of, split_media, text_of, tool_call
from ramify.integrations.formats.sessions import SessionPath, grow_tree, link_subagent, task_name
from ramify.integrations.trainers.reading import SINGLE
from ramify.integrations.trainers.rows import Selection, attempts, count_media, settings_of, write_table
from ramify.trace.aliases import KNOWN
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader, Writer
from ramify.trace.lines import MAX_LINE, read_items, read_json
from ramify.trace.lines import field as field_of
from ramify.trace.message import Message, plain
from ramify.trace.node import Annotation, Provenance
from ramify.trace.notes import lost, unread
from ramify.trace.offered import tools_of
from ramify.trace.view import TokenMessage, View

MAKER = "atif"
VERSION = "ATIF-v1.8"
_KNOWN = re.compile(r"ATIF-v1\.\d+")
_TRAJECTORY = frozenset(
    (
        *(
            "schema_version",
            "session_id",
            "trajectory_id",
            "agent",
            "steps",
            "notes",
            "final_metrics",
            "continued_trajectory_ref",
        ),
        *("extra", "subagent_trajectories"),
    )
)
_STEP = frozenset(
    (
        *("step_id", "timestamp", "source", "model_name", "reasoning_effort", "message", "reasoning_content", "tool_calls"),
        *("observation", "metrics", "extra", "llm_call_count", "is_copied_context"),
    )
)
_RESULT = frozenset(("source_call_id", "content", "subagent_trajectory_ref", "extra"))
_RESULT_FILE = "result.json"
_PROMPTS = re.compile(rb'(?<="prompt_token_ids":)\s*\[[\d,\s]*\]')
_MOST = 16 * MAX_LINE
"""A larger file is not read."""


def read_atif(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from a trajectory, a list of them, or one a line. Returns how many.

    Raises UserError naming file, step and field: on a version that is none of ATIF 1, a field of a wrong type, and token ids and
    log-probs that do not fit each other. Nothing is left in ``folder`` then.
    """
    records, lean = read_items(path), _begins_as_one(path)
    if lean:  # the ids of every prompt repeat all that was before: without them most documents are small enough
        records = iter([(1, _without_prompts(path))])

    def end(run: Run) -> None:
        if lean:
            run.log("ignored", "prompt_token_ids", {"count": 1, "what": "trajectories that are too large with it"})

    return import_records(path, folder, MAKER, _Trajectories(path).add, records, end=end)


def _without_prompts(path: Path) -> dict[str, Any]:
    """The trajectory in a file that is too large to be parsed whole, without the token ids of its prompts. Raises UserError."""
    text = path.read_bytes() if path.stat().st_size <= _MOST else b"x" * (MAX_LINE + 1)
    text = _PROMPTS.sub(b"null", text)
    if len(text) > MAX_LINE:
        raise UserError(f"{path} is one trajectory of more than {MAX_LINE} bytes, also without its 'prompt_token_ids'")
    try:
        return dict(object_of(json.loads(text), f"{path}:1"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from None


def _matches(path: Path, first: Mapping[str, Any] | None) -> bool:
    version = None if first is None else first.get("schema_version")
    if first is None:
        return _begins_as_one(path)
    return isinstance(version, str) and version.startswith("ATIF-v")


def _begins_as_one(path: Path) -> bool:
    """Whether a file of any size begins as a trajectory that takes several lines, or one that is too long."""
    with suppress(OSError):
        if path.is_file() and path.stat().st_size > MAX_LINE:
            with path.open("rb") as file:
                start = file.read(1 << 12)
            return b'"ATIF-v1.' in start and b"\n{" not in start.lstrip()[1:]
    return False


@dataclass
class _Said:
    """A message of a trajectory, before it is written."""

    message: Message
    replied: bool = False
    about: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    refs: list[Mapping[str, Any]] = field(default_factory=list)
    """Trajectories of the subagents whose work it reports."""


class _Trajectories:
    """Adds the trajectories of a file."""

    def __init__(self, path: Path) -> None:
        self.result = _result_beside(path)
        self.draws, self.names = count(), count(1)

    def add(self, run: Run, record: dict[str, Any], place: str, number: int) -> None:
        """Add one trajectory and those inside it. Raises UserError naming ``place``."""
        self._trajectory(run, record, place)

    def _trajectory(self, run: Run, record: Mapping[str, Any], place: str, side: bool = False) -> str:
        """Add a trajectory; returns the node it ends at."""
        version = text_of(record, "schema_version", place)
        if not _KNOWN.fullmatch(version):
            raise UserError(f"{place}: 'schema_version' is '{version}', and only ATIF-v1 is readable here")
        unread(record, _TRAJECTORY, "trajectory")
        agent = object_of(record.get("agent"), f"{place}: 'agent'")
        steps = list_of(record.get("steps"), f"{place}: 'steps'")
        if not steps:
            raise UserError(f"{place}: 'steps' is empty")
        extra = field_of(dict(record), "extra", dict, place, {})
        said = [part for at, step in enumerate(steps, 1) for part in self._step(run, step, agent, f"{place}: step {at}")]
        _spell(said)
        result: Mapping[str, Any] = {} if side else self.result
        judged = KNOWN.judged(result or extra, place)
        if extra.get("truncated") is True and not result:
            judged = judged._replace(cut=True)
        kept = ("session_id", "trajectory_id", "notes", "final_metrics", "continued_trajectory_ref", "extra", "agent")
        about = {"record": redact(plain({name: record[name] for name in kept if record.get(name) is not None}))}
        path = SessionPath.begin(run, self._tree(run, said, result, extra, side), next(self.draws))
        embedded = self._embedded(record, place)
        calls: list[tuple[str, str]] = []
        for number, part in enumerate(said, 1):
            last = number == len(said)
            stop = {"stop": judged.stop} if last and judged.stop else {}
            node = path.hang(part.message, part.replied, last, {**part.about, **(about if last else {})}, **part.fields, **stop)
            calls += [(node.id, str(ref.get("trajectory_id"))) for ref in part.refs]
        path.end(judged)
        for caller, name in calls:
            if name in embedded:
                inside, spot = embedded.pop(name)
                link_subagent(run, caller, self._trajectory(run, inside, spot, side=True), MAKER)
        for inside, spot in embedded.values():  # nobody refers to these
            self._trajectory(run, inside, spot, side=True)
        return path.node.id

    def _embedded(self, record: Mapping[str, Any], place: str) -> dict[str, tuple[Mapping[str, Any], str]]:
        embedded = {}
        for at, inside in enumerate(list_of(record.get("subagent_trajectories") or [], f"{place}: 'subagent_trajectories'")):
            spot = f"{place}: subagent trajectory {at}"
            embedded[text_of(object_of(inside, spot), "trajectory_id", spot)] = (inside, spot)
        return embedded

    def _tree(self, run: Run, said: list[_Said], result: Mapping[str, Any], extra: Mapping[str, Any], side: bool) -> str:
        named = result.get("task_name") or next(
            (extra[name] for name in ("task_id", "task", "task_name") if extra.get(name)), None
        )
        prompt = next((part.message.text for part in said if part.message.role == "user" and part.message.text.strip()), "")
        if isinstance(named, str) and not side:
            return grow_tree(run, named)
        if prompt:
            return grow_tree(run, f"subagent: {task_name(prompt)}" if side else task_name(prompt))
        return grow_tree(run, f"chat-{next(self.names):06d}", known=False)

    def _step(self, run: Run, value: Any, agent: Mapping[str, Any], spot: str) -> Iterator[_Said]:
        step = object_of(value, spot)
        unread(step, _STEP, "step")
        source = text_of(step, "source", spot)
        if source not in ("system", "user", "agent"):
            raise UserError(f"{spot}: 'source' is '{source}', which is none of system, user, agent")
        text, data = _content(step.get("message"), run, f"{spot}: 'message'")
        about = {"response": redact(plain(_kept(step, spot)))} if _kept(step, spot) else {}
        if source != "agent":
            yield _Said(Message(source, text, data), about=about)
        else:
            yield self._reply(run, step, agent, text, data, about, spot)
        observation = field_of(dict(step), "observation", dict, spot, {})
        called = bool(step.get("tool_calls"))
        for at, result in enumerate(list_of(observation.get("results") or [], f"{spot}: 'results' of 'observation'")):
            yield self._observed(run, object_of(result, f"{spot}: result {at}"), called, f"{spot}: result {at}")

    def _reply(
        self,
        run: Run,
        step: Mapping[str, Any],
        agent: Mapping[str, Any],
        text: str,
        data: dict[str, Any],
        about: dict[str, Any],
        spot: str,
    ) -> _Said:
        reasoning = text_of(step, "reasoning_content", spot) if step.get("reasoning_content") is not None else ""
        calls = []
        for at, call in enumerate(list_of(step.get("tool_calls") or [], f"{spot}: 'tool_calls'")):
            where = f"{spot}: tool call {at}"
            call = object_of(call, where)
            arguments = object_of(call.get("arguments"), f"{where}: 'arguments'")
            calls.append(tool_call(text_of(call, "tool_call_id", where), text_of(call, "function_name", where), arguments))
        data |= {**({"reasoning": reasoning} if reasoning else {}), **({"tool_calls": calls} if calls else {})}
        copied = field_of(dict(step), "is_copied_context", bool, spot, False)
        if copied or step.get("llm_call_count") == 0:  # it was not sampled here
            return _Said(Message("assistant", text, {**data, "llm_call_count": 0} if not copied else data), about=about)
        settings = {"agent": agent.get("name"), "version": agent.get("version"), "effort": step.get("reasoning_effort")}
        tools = {"tools": agent["tool_definitions"]} if isinstance(agent.get("tool_definitions"), list) else {}
        settings = {name: value for name, value in settings.items() if value is not None} | tools
        model = step.get("model_name") or agent.get("model_name") or "unknown"
        provenance = Provenance(str(model), "", redact(plain(settings)), 0)
        run.add(provenance)
        fields = {"provenance": provenance.hash, **_tokens(step, spot)}
        return _Said(Message("assistant", text, data), True, about, fields)

    def _observed(self, run: Run, result: Mapping[str, Any], called: bool, spot: str) -> _Said:
        unread(result, _RESULT, "result")
        text, data = _content(result.get("content", ""), run, f"{spot}: 'content'")
        refs = [object_of(ref, f"{spot}: a subagent") for ref in list_of(result.get("subagent_trajectory_ref") or [], spot)]
        key = result.get("source_call_id")
        if key is not None:
            data["tool_call_id"] = text_of(result, "source_call_id", spot)
        elif not called:
            data["observation"] = True
        about = {"subagents": plain(refs)} if refs else {}
        extra = {"response": redact(plain({"extra": result["extra"]}))} if result.get("extra") else {}
        return _Said(Message("tool" if called or key is not None else "user", text, data), False, {**about, **extra}, refs=refs)


def _kept(step: Mapping[str, Any], spot: str) -> dict[str, Any]:
    """What else a step says: when, its numbers without the tokens, and extras."""
    metrics = field_of(dict(step), "metrics", dict, spot, {})
    numbers = {k: v for k, v in metrics.items() if k not in ("prompt_token_ids", "completion_token_ids", "logprobs")}
    kept = {name: step[name] for name in ("timestamp", "extra") if step.get(name) is not None}
    return kept | ({"metrics": numbers} if any(value is not None for value in numbers.values()) else {})


def _content(content: Any, run: Run, spot: str) -> tuple[str, dict[str, Any]]:
    """The text of a message, with a placeholder for each image and sound; and what the placeholders stand for."""
    if content is None or isinstance(content, str):
        return content or "", {}
    media, texts = Media(run.put_blob), []
    for at, value in enumerate(list_of(content, f"{spot}, if no text,")):
        where = f"{spot}, part {at}"
        part = object_of(value, where)
        kind = text_of(part, "type", where)
        if kind == "text":
            texts.append(text_of(part, "text", where))
        elif kind in ("image", "audio"):
            source = object_of(part.get("source"), f"{where}: 'source'")
            name, media_type = text_of(source, "path", where), text_of(source, "media_type", where)
            placeholder = media.named(kind, "url" if ":" in name.partition("/")[0] else "file", name)
            media.found[placeholder].setdefault("media_type", media_type)
            texts.append(placeholder)
        else:
            raise UserError(f"{where} is of type '{kind}', which is none of text, image, audio")
    return "".join(texts), media.data()


def _ids(metrics: Mapping[str, Any], name: str, spot: str) -> np.ndarray | None:
    """Token ids, int32 (T,); None where there are none."""
    values = field_of(dict(metrics), name, list, f"{spot}: 'metrics'", None)
    if values is None:
        return None
    if any(type(value) is not int or not 0 <= value < 1 << 31 for value in values):
        raise UserError(f"{spot}: '{name}' holds something that is not a token id")
    return np.array(values, np.int32)


def _tokens(step: Mapping[str, Any], spot: str) -> dict[str, Any]:
    """Tokens of a reply, all sampled, and their log-probs, where they are there; ``prompt`` holds what stood before it."""
    metrics = field_of(dict(step), "metrics", dict, spot, {})
    tokens, prompt = _ids(metrics, "completion_token_ids", spot), _ids(metrics, "prompt_token_ids", spot)
    logprobs = field_of(metrics, "logprobs", list, f"{spot}: 'metrics'", None)
    if tokens is None or not len(tokens):
        return {}
    arrays: dict[str, Any] = {"tokens": tokens, "sampled": np.ones(len(tokens), np.bool_), "prompt": prompt}
    if logprobs is None:
        return arrays
    if len(logprobs) != len(tokens) or any(type(value) not in (float, int) or abs(value) >= SINGLE for value in logprobs):
        raise UserError(f"{spot}: 'logprobs' must hold a number for each of {len(tokens)} completion tokens")
    return arrays | {"logprobs": np.array(logprobs, np.float32)}


def _spell(said: list[_Said]) -> None:
    """Give what was said between the replies its tokens, where every reply has them and each prompt continues what was before:
    the last message before a reply holds all that is new in its prompt."""
    prompts = [message.fields.pop("prompt", None) for message in said]
    before = np.zeros(0, np.int32)
    spelled: dict[int, np.ndarray] = {}
    for at, message in enumerate(said):
        if not message.replied:
            continue
        prompt = prompts[at]
        if prompt is None or "tokens" not in message.fields or not np.array_equal(prompt[: len(before)], before):
            return
        if at and not said[at - 1].replied:
            spelled[at - 1] = prompt[len(before) :]
        elif len(prompt) > len(before):
            return
        before = np.concatenate([prompt, message.fields["tokens"]])
    if not len(before):
        return
    for at, message in enumerate(said):
        if not message.replied:
            message.fields["tokens"] = spelled.get(at, np.zeros(0, np.int32))


def _result_beside(path: Path) -> Mapping[str, Any]:
    """Harbor's result of the trial whose trajectory this is; empty where there is none."""
    for folder in (path.parent, path.parent.parent):
        file = folder / _RESULT_FILE
        with suppress(UserError, OSError):
            if file.is_file() and file.stat().st_size <= MAX_LINE:
                result = read_json(file, dict)
                if isinstance(result.get("task_name"), str) and "trial_name" in result:
                    kept = ("task_name", "verifier_result", "exception_info")
                    return {name: result[name] for name in kept if result.get(name) is not None}
    return {}


# --- out --------------------------------------------------------------------------------------------------------------


def write_atif(run: Run, out: Path, **settings: Any) -> int:
    """Write attempts as trajectories of ATIF 1.8: one into ``.json``, or one a line into ``.jsonl``; returns how many.
    ``settings``: :class:`Selection`. Attempts of subagents stand inside those that called them.

    Raises UserError where no attempt fits the settings, several would go into one ``.json``, or the ending is neither.
    """
    chosen = check(Selection, settings, MAKER)
    writer = _Writer(run)
    if out.suffix.lower() == ".jsonl":
        return write_table(out, writer.documents(chosen), {}, chosen.max_rows)
    if out.suffix.lower() != ".json":
        raise UserError(f"cannot write {out}: trajectories go into a file that ends in .json, or several into .jsonl")
    documents = [*islice(writer.documents(chosen), min(2, chosen.max_rows or 2))]
    if len(documents) != 1:
        what = "several attempts, and a .json holds one: write .jsonl" if documents else "no attempt that fits the selection"
        raise UserError(f"cannot write {out}: the run holds {what}")
    write_whole(out, json.dumps(documents[0], ensure_ascii=False, allow_nan=False, indent=1).encode("utf-8", "replace"))
    return 1


class _Writer:
    """Makes trajectories of attempts."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.inside: dict[str, list[str]] = {}
        """Node that called a subagent -> where those ended."""
        for note in run.each(Annotation):
            if note.name == "subagent" and isinstance(note.value, Mapping) and isinstance(note.value.get("node"), str):
                self.inside.setdefault(note.node, []).append(note.value["node"])
        self.called = {end for ends in self.inside.values() for end in ends}

    def documents(self, chosen: Selection) -> Iterator[dict[str, Any]]:
        """A trajectory for each chosen attempt."""
        for attempt in attempts(self.run, chosen):
            if attempt.leaf not in self.called:
                yield self._document(attempt, ())

    def _document(self, view: View, above: tuple[str, ...]) -> dict[str, Any]:
        steps: list[dict[str, Any]] = []
        inside: list[dict[str, Any]] = []
        for message in view.messages:
            refs = []
            for node in message.nodes:
                for end in self.inside.get(node.id, ()):
                    if end not in above and len(above) < 16:
                        inside.append(self._document(self._view(end), (*above, view.leaf)))
                        refs.append({"trajectory_id": end})
            self._add(steps, message, refs)
        if not steps:
            steps.append({"source": "user", "message": ""})
        for number, step in enumerate(steps, 1):
            step["step_id"] = number
        record = view.end.data.get("record")
        record = record if isinstance(record, Mapping) else {}
        extra = {"task": view.task, "reward": view.reward, "success": view.success, "failure": view.failure}
        extra |= {"truncated": True} if view.cut else {}
        known = record.get("extra")
        about = {
            "session_id": record.get("session_id"),
            "notes": record.get("notes"),
            "final_metrics": record.get("final_metrics"),
        }
        return {
            "schema_version": VERSION,
            "trajectory_id": view.leaf,
            "agent": self._agent(view, record),
            "steps": steps,
            **{name: value for name, value in about.items() if value is not None},
            "extra": {**(known if isinstance(known, Mapping) else {}), **{k: v for k, v in extra.items() if v is not None}},
            **({"subagent_trajectories": inside} if inside else {}),
        }

    def _view(self, end: str) -> View:
        tree = self.run.tree(self.run.node(end).tree)
        record = next(iter(self.run.attempts(leaf=end)), None)
        return View(self.run.tree_info(tree.name), tree, tree.path(end), None, record)

    def _agent(self, view: View, record: Mapping[str, Any]) -> dict[str, Any]:
        known = record.get("agent")
        if isinstance(known, Mapping) and isinstance(known.get("name"), str) and isinstance(known.get("version"), str):
            return dict(known)
        by = next((node.provenance for node, _ in reversed(view.path.segments) if node.provenance), None)
        provenance = None if by is None else self.run.provenance(by)
        settings = {} if provenance is None else provenance.settings
        tools = tools_of(self.run, view)
        return {
            "name": str(settings.get("agent") or "unknown"),
            "version": str(settings.get("version") or "unknown"),
            **({} if provenance is None or provenance.model == "unknown" else {"model_name": provenance.model}),
            **({"tool_definitions": tools} if tools else {}),
        }

    def _add(self, steps: list[dict[str, Any]], message: TokenMessage, refs: list[dict[str, Any]]) -> None:
        data, role = message.data, message.role
        before = steps[-1] if steps and steps[-1]["source"] == "agent" else None
        if before is not None and (role == "tool" or data.get("observation") is True):
            calls = {call["tool_call_id"] for call in before.get("tool_calls", ())}
            key = data.get("tool_call_id")
            result: dict[str, Any] = {"source_call_id": key} if key in calls else {}
            result["content"] = self._shown(message)
            result |= {"subagent_trajectory_ref": refs} if refs else {}
            before.setdefault("observation", {"results": []})["results"].append(result)
            return
        step: dict[str, Any] = {"source": {"assistant": "agent", "tool": "user"}.get(role, role), "message": self._shown(message)}
        response = data.get("response")
        response = response if isinstance(response, Mapping) else {}
        step |= {name: response[name] for name in ("timestamp", "extra") if response.get(name) is not None}
        if role == "assistant":
            self._fill(step, message, response)
            if refs:
                step["observation"] = {"results": [{"subagent_trajectory_ref": refs}]}
        elif refs:
            lost("subagent that nothing called", len(refs))
        steps.append(step)

    def _fill(self, step: dict[str, Any], message: TokenMessage, response: Mapping[str, Any]) -> None:
        """What only a reply has: reasoning, calls, numbers, tokens."""
        node = message.nodes[-1] if message.nodes else None
        calls = message.data.get("tool_calls")
        written = []
        for number, (call, (name, arguments)) in enumerate(
            zip(calls if isinstance(calls, list) else (), message.message.functions, strict=False)
        ):
            wanted = dict(arguments) if isinstance(arguments, Mapping) else {"arguments": arguments}
            key = str(call.get("id") or f"call_{number}")
            written.append({"tool_call_id": key, "function_name": str(name), "arguments": plain(wanted)})
        step |= {"tool_calls": written} if written else {}
        sampled = node is not None and (node.provenance is not None or node.index >= 0)
        if message.data.get("llm_call_count") == 0:
            step["llm_call_count"] = 0
            return
        step |= {"reasoning_content": message.message.reasoning} if message.message.reasoning else {}
        if not sampled:
            step["is_copied_context"] = True
        if node is not None and node.provenance is not None:
            model = self.run.provenance(node.provenance).model
            step |= {} if model == "unknown" else {"model_name": model}
        metrics = {**_numbers(response), **self._spelled(message)}
        step |= {"metrics": metrics} if metrics else {}
        if message.viewed:
            lost("compacted context")

    def _spelled(self, message: TokenMessage) -> dict[str, Any]:
        if message.tokens is None or message.sampled is None or not message.sampled.any() or len(message.nodes) != 1:
            return {}
        (node,) = message.nodes
        arrays: dict[str, Any] = {"completion_token_ids": message.tokens[message.sampled].tolist()}
        prompt = self.run.shown(node.id).tokens
        if prompt is not None:
            arrays["prompt_token_ids"] = [*prompt.tolist(), *message.tokens[: node.head].tolist()]
        if node.logprobs is not None and np.isfinite(node.logprobs).all():
            arrays["logprobs"] = node.logprobs[message.sampled].tolist()
        return arrays

    def _shown(self, message: TokenMessage) -> str | list[dict[str, Any]]:
        """The text of a message, or its parts where it has images or sounds."""
        if "media" not in message.data:
            count_media(message.message)
            return message.text
        parts = [self._piece(piece) for piece in split_media(message.message)]
        return message.text if all(part["type"] == "text" for part in parts) else parts

    def _piece(self, piece: str | Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(piece, str):
            return {"type": "text", "text": piece}
        name = str(piece.get("url") or piece.get("file") or "")
        media_type = str(piece.get("media_type") or mimetypes.guess_type(name)[0] or "")
        kind = str(piece["type"])
        if media_type not in _MEDIA_TYPES or not media_type.startswith(kind):
            lost(kind)
            return {"type": "text", "text": f"[{kind}]"}
        if "blob" in piece:
            name = f"data:{media_type};base64,{base64.b64encode(self.run.get_blob(piece['blob'])).decode()}"
        return {"type": kind, "source": {"media_type": media_type, "path": name}}


_MEDIA_TYPES = (
    *("image/jpeg", "image/png", "image/gif", "image/webp"),
    *(f"audio/{kind}" for kind in ("wav", "mpeg", "mp4", "aac", "ogg", "flac", "webm", "aiff")),
)
"""What the format has a place for."""


def _numbers(response: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a call to the model: those of the format itself, or a provider's usage."""
    known = response.get("metrics")
    if isinstance(known, Mapping):
        return {k: v for k, v in known.items() if v is not None}
    usage = response.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}

    def of(*names: str) -> int | None:
        return next((usage[name] for name in names if type(usage.get(name)) is int), None)

    cached = of("cache_read_input_tokens", "cached_input_tokens")
    prompt = of("prompt_tokens", "input_tokens")
    if prompt is not None and "cache_read_input_tokens" in usage:  # Anthropic counts these apart
        prompt += (cached or 0) + (of("cache_creation_input_tokens") or 0)
    numbers = {"prompt_tokens": prompt, "completion_tokens": of("completion_tokens", "output_tokens"), "cached_tokens": cached}
    return {name: value for name, value in numbers.items() if value is not None}


EXAMPLE: dict[str, Any] = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s1",
    "agent": {"name": "some-agent", "version": "1.0", "model_name": "model-x"},
    "steps": [
        {"step_id": 1, "source": "system", "message": "Use the tools."},
        {"step_id": 2, "source": "user", "message": "Is it warm in Oslo?"},
        {
            "step_id": 3,
            "source": "agent",
            "message": "I look.",
            "reasoning_content": "I need a thermometer.",
            "tool_calls": [{"tool_call_id": "c1", "function_name": "weather", "arguments": {"city": "Oslo"}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "4 degrees"}]},
            "metrics": {"prompt_tokens": 20, "completion_tokens": 8},
        },
        {"step_id": 4, "source": "agent", "message": "No: 4 degrees."},
    ],
    "extra": {"reward": 1.0},
}

register("reader", MAKER)(
    Reader(
        MAKER,
        "Trajectories of ATIF 1 (Harbor): subagents are trees of their own; the outcome is that of result.json beside it.",
        _matches,
        read_atif,
        (),
        json.dumps(EXAMPLE),
    )
)
register("writer", MAKER)(
    Writer(
        MAKER,
        "attempts as trajectories of ATIF 1.8: one (.json), or one a line (.jsonl)",
        write_atif,
        (),
        settings_of(Selection),
    )
)
