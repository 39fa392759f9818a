"""Sessions of Claude Code into a run: the files below ``~/.claude/projects``, and ``claude -p --output-format stream-json``.

A session is a tree of lines (``parentUuid``): a rewind or a retry is a branch, and each end an attempt at the task, which the
first prompt names. Lines of one reply (one message id) are one message; results of calls that were made together stand together.
A compaction stays on the path, and what the model was shown from there on is the context of each reply. Subagents are trees of
their own; their caller's node names where they ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.base.secrets import redact
from ramify.integrations.formats.anthropic import KINDS, read_turn
from ramify.integrations.formats.exchanges import object_of, text_of
from ramify.integrations.formats.sessions import LooseExchange, SessionPath, grow_tree, link_subagent, task_name
from ramify.trace.aliases import KNOWN, NOTHING, Judged, message_of
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.lines import at_place
from ramify.trace.lines import field as field_of
from ramify.trace.message import FIELDS, Message, as_text, plain, refuse_unknown
from ramify.trace.node import Insert, Provenance, Span
from ramify.trace.notes import noting, unread

MAKER = "claude-code"
_SAID = ("user", "assistant")
_CHAINED = (*_SAID, "system", "attachment", "progress")
"""Types of lines that stand in the tree. Of the last three only the boundary of a compaction, a prompt that waited while the
agent worked, a CLAUDE.md of a folder or a file that the model was shown, and the end by a limit say something."""
_OTHERS = (
    *("summary", "queue-operation", "last-prompt", "mode", "permission-mode", "file-history-snapshot", "custom-title"),
    *("ai-title", "agent-name", "agent-color", "agent-setting", "tag", "pr-link", "attribution-snapshot", "worktree-state"),
    *("result",),
    *("content-replacement", "stream_event", "rate_limit_event", "tool_progress", "auth_status", "control_request"),
)
"""Types of lines that are known and are not part of what was said."""
_FIELDS = frozenset(
    (
        *("type", "message", "uuid", "parentUuid", "logicalParentUuid", "sessionId", "session_id", "isSidechain", "isMeta"),
        *("isCompactSummary", "isVisibleInTranscriptOnly", "isApiErrorMessage", "error", "errorDetails", "apiErrorStatus"),
        *("timestamp", "version", "cwd", "gitBranch", "userType", "entrypoint", "slug", "promptId", "promptSource", "requestId"),
        *("permissionMode", "toolUseResult", "tool_use_result", "sourceToolAssistantUUID", "sourceToolUseID", "agentId"),
        *("parent_tool_use_id", "subagent_type", "task_description", "thinkingMetadata", "todos", "isReplay", "isSynthetic"),
        *("imagePasteIds", "origin", "teamName", "agentName", "sessionKind", "attributionAgent", "attributionSkill"),
        *("attributionPlugin", "attributionMcpServer", "attributionMcpTool", "mcpMeta", "planContent", "subtype", "level"),
    )
)
_HARNESS = ("<local-command-", "<system-reminder>", "<bash-stdout>", "<task-notification>", "Caveat: ", "[Request interrupted")
"""How texts begin that the harness puts between the person's."""
_ABOUT = ("id", "model", "stop_reason", "usage")
_RESULT = ("subtype", "num_turns", "total_cost_usd", "duration_ms", "usage", "modelUsage", "permission_denials")
"""What is kept of the last line of a stream."""
_LIMITS = ("prompt is too long", "output token maximum", "max_output_tokens", "context window")


def read_claude_code(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from sessions of Claude Code. Returns how many lines they have.

    Raises UserError naming file, line and field: on a field of a wrong type, a block that cannot be read, lines that are their
    own parents. Nothing is left in ``folder`` then.
    """
    session = Sessions(path)
    return import_records(path, folder, MAKER, session.add, end=session.end)


def _matches(path: Path, first: Mapping[str, Any] | None) -> bool:
    kind = None if first is None else first.get("type")
    if first is None or not isinstance(kind, str):
        return False
    if kind in ("summary", "file-history-snapshot"):
        return "leafUuid" in first or "snapshot" in first
    if is_qwen_code(first):
        return False
    if isinstance(first.get("sessionId"), str):
        return kind in (*_CHAINED, *_OTHERS)
    streamed = kind in (*_SAID, "result") or (kind == "system" and "subtype" in first)
    return streamed and isinstance(first.get("session_id"), str)


def is_qwen_code(line: Mapping[str, Any]) -> bool:
    """Whether a line of this frame is of Qwen Code, whose messages are in Gemini's form."""
    message = line.get("message")
    parts = isinstance(message, Mapping) and "parts" in message and "content" not in message
    return parts or "systemPayload" in line or line.get("type") == "tool_result"


@dataclass(slots=True)
class Group:
    """Lines that are one message: a reply, or what was said to it at once."""

    role: str
    place: str
    session: str
    side: str
    """Which subagent's conversation it is in; "" for the session's own."""
    parent: str | None
    """Uuid of the line before it."""
    above: int | None = None
    """The group before it, where that is known otherwise."""
    kind: str = "said"
    """said, boundary (of a compaction), summary (what it left), error (of the provider), harness (made up by the harness), shown
    (a file that the harness put before the model)."""
    content: list[bytes] = field(default_factory=list)
    """The content of each line, as JSON."""
    about: dict[str, Any] = field(default_factory=dict)
    answers: set[str] = field(default_factory=set)
    """Ids of the calls whose results it holds."""
    results: int | None = None
    """The group with the results of its calls."""
    preserved: list[str] = field(default_factory=list)
    """Uuids of the lines that a compaction kept."""
    history: tuple[Insert, ...] = ()
    """What the model is shown from a compaction on, where its line holds that."""
    kept: list[int] = field(default_factory=list)
    """Groups that were said again after a compaction."""
    ending: Judged = NOTHING
    nodes: list[str] = field(default_factory=list)


class Sessions:
    """Gathers the lines of a file, and makes trees of them at its end. What is said is kept as JSON, of about the file's size."""

    def __init__(self, path: Path, maker: str = MAKER) -> None:
        self.path, self.maker = path, maker
        self.groups: list[Group] = []
        self.places: dict[str, int | str | None] = {}
        """Uuid of a line -> its group; of a line that says nothing the uuid of the line before it."""
        self.replies: dict[tuple[str, str], int] = {}
        self.calls: dict[tuple[str, str], int] = {}
        self.last: dict[tuple[str, str], str] = {}
        self.agents: dict[str, str] = {}
        """Subagent -> id of the call that started it."""
        self.prompts: dict[str, str] = {}
        """Prompt of a subagent -> id of the call that started it."""
        self.callers: dict[str, str] = {}
        self.left_out: dict[str, int] = {}
        self.draws, self.names = count(), count(1)

    # reading

    def add(self, run: Run, record: dict[str, Any], place: str, number: int) -> None:
        """Take one line. Raises UserError naming ``place``."""
        kind = text_of(record, "type", place)
        session = next((text_of(record, name, place) for name in ("sessionId", "session_id") if record.get(name) is not None), "")
        caller = field_of(record, "parent_tool_use_id", str, place, None)
        side = field_of(record, "agentId", str, place, None) or caller or ("side" if record.get("isSidechain") else "")
        if kind not in _CHAINED:
            if kind == "result":
                self._result(record, session, place)
            elif kind in _OTHERS:
                self._leave_out("bookkeeping")
            else:
                unread({kind: "line"}, (), "line")
            return
        uuid = field_of(record, "uuid", str, place, None) or f"line {number}"
        if uuid in self.places:
            self._leave_out("repeated uuid")
            return
        chained = "parentUuid" in record
        parent = field_of(record, "parentUuid", str, place, None) if chained else self.last.get((session, side))
        if caller is not None:
            self.agents.setdefault(side, caller)
        group = self._said(record, kind, session, side, parent, place) if kind in _SAID else None
        if group is None:
            group = self._told(record, kind, session, side, parent, place)
        self.places[uuid] = parent if group is None else group
        if not (chained and parent is None and kind not in _SAID):
            self.last[session, side] = uuid

    def _leave_out(self, name: str) -> None:
        self.left_out[name] = self.left_out.get(name, 0) + 1

    def _said(self, record: dict[str, Any], kind: str, session: str, side: str, parent: str | None, place: str) -> int | None:
        unread(record, _FIELDS, "line")
        message = object_of(record.get("message"), f"{place}: 'message'")
        if message.get("content") is None:
            refuse_unknown(message, {*FIELDS, "stop_sequence"}, f"{place}: 'message'", "'content' nor anything else that is read")
        content = _readable(message.get("content"), f"{place}: 'content' of 'message'")
        if record.get("isVisibleInTranscriptOnly") and not record.get("isCompactSummary"):
            self._leave_out("isVisibleInTranscriptOnly")
            return None
        with at_place(place):  # says now what is wrong with it, when its line is known
            read = [*read_turn({"role": kind, "content": content}, place, lambda data: "", LooseExchange())]
        raw = json.dumps(content, separators=(",", ":")).encode("utf-8", "surrogatepass")
        if self._is_replay(kind, message, content, raw, side, parent):
            self._leave_out("repeated line")
            return None
        at = self._group_of(record, kind, message, content, session, side, parent, place)
        group = self.groups[at]
        group.content.append(raw)
        if kind == "assistant":
            group.about |= {name: message[name] for name in _ABOUT if message.get(name) is not None}
            synthetic = message.get("model") == "<synthetic>"
            if record.get("isApiErrorMessage") or (synthetic and record.get("error")):
                group.kind = "error"
                group.about["error"] = {"type": message_of(record.get("error")), "message": read[-1].text if read else ""}
            elif synthetic:
                group.kind = "harness"
            for spoken in read:
                self._remember_calls(spoken, side, at)
        elif record.get("isCompactSummary") or (record.get("isSynthetic") and self._kind_at(group.parent) == "boundary"):
            group.kind = "summary"
        elif record.get("isMeta"):
            group.kind = "harness"
        return at

    def _is_replay(self, kind: str, message: Mapping[str, Any], content: Any, raw: bytes, side: str, parent: str | None) -> bool:
        """Whether a line says again what stood before, as some do after a compaction: then the compaction kept it."""
        if kind == "assistant":
            old = self.replies.get((side, str(message.get("id"))))
        else:
            caller = next((self.calls.get((side, key)) for key in _answers(content)), None)
            old = None if caller is None else self.groups[caller].results
        if old is None or raw not in self.groups[old].content:
            return False
        before = self._at(parent)
        if before is not None and self.groups[before].kind in ("boundary", "summary"):
            self.groups[before].kept.append(old)
        return True

    def _kind_at(self, uuid: str | None) -> str:
        at = None if uuid is None else self.places.get(uuid)
        return self.groups[at].kind if isinstance(at, int) else ""

    def _remember_calls(self, message: Message, side: str, at: int) -> None:
        for call in message.data.get("tool_calls", ()):
            self.calls[side, call["id"]] = at
            arguments = json.loads(call["function"]["arguments"])
            prompt = arguments.get("prompt") if isinstance(arguments, dict) else None
            if isinstance(prompt, str) and call["function"]["name"] in ("Task", "Agent"):
                self.prompts[task_name(prompt)] = call["id"]

    def _group_of(
        self,
        record: Mapping[str, Any],
        kind: str,
        message: Mapping[str, Any],
        content: Any,
        session: str,
        side: str,
        parent: str | None,
        place: str,
    ) -> int:
        """The group of a line: that of its reply, that of the results of one reply, or a new one."""
        new = Group(kind, place, session, side, parent)
        if kind == "assistant":
            key = (side, str(message.get("id") or f"at {place}"))
            return self.replies.setdefault(key, self._open(new)) if key not in self.replies else self.replies[key]
        new.answers = set(_answers(content))
        self._name_agent(record, new.answers)
        caller = next((at for key in sorted(new.answers) if (at := self.calls.get((side, key))) is not None), None)
        if caller is None:
            return self._open(new)
        reply = self.groups[caller]
        if reply.results is not None and not self.groups[reply.results].answers & new.answers:
            self.groups[reply.results].answers |= new.answers
            return reply.results
        new.above = caller
        reply.results = self._open(new)
        return reply.results

    def _open(self, group: Group) -> int:
        self.groups.append(group)
        return len(self.groups) - 1

    def _name_agent(self, record: Mapping[str, Any], answers: set[str]) -> None:
        result = record.get("toolUseResult", record.get("tool_use_result"))
        agent = result.get("agentId") if isinstance(result, Mapping) else None
        if isinstance(agent, str) and len(answers) == 1:
            self.agents.setdefault(agent, next(iter(answers)))

    def _told(self, record: Mapping[str, Any], kind: str, session: str, side: str, parent: str | None, place: str) -> int | None:
        """The group of a line of the harness that matters: a compaction, a prompt that waited; None of any other."""
        about = record.get("attachment")
        about = about if isinstance(about, Mapping) else {}
        if kind == "system" and record.get("subtype") == "compact_boundary":
            meta = record.get("compactMetadata", record.get("compact_metadata"))
            before = record.get("logicalParentUuid")
            before = before if isinstance(before, str) and before in self.places else parent or self.last.get((session, side))
            group = Group("user", place, session, side, before, kind="boundary", preserved=_preserved(meta))
            return self._open(group)
        if about.get("type") == "queued_command" and isinstance(about.get("prompt"), str):
            group = Group("user", place, session, side, parent)
            group.content.append(json.dumps(about["prompt"]).encode("utf-8", "surrogatepass"))
            return self._open(group)
        if (text := _shown(about)) is not None:
            group = Group("user", place, session, side, parent, kind="shown")
            group.content.append(json.dumps(text).encode("utf-8", "surrogatepass"))
            return self._open(group)
        if about.get("type") == "max_turns_reached":
            at = self._at(parent)
            if at is not None:
                self.groups[at].ending = NOTHING._replace(cut=True)
        elif kind not in _SAID:
            self._leave_out(kind)
        return None

    def _result(self, record: dict[str, Any], session: str, place: str) -> None:
        """The last line of a stream: how it ended."""
        subtype = text_of(record, "subtype", place, "")
        failed = field_of(record, "is_error", bool, place, False)
        ending = NOTHING._replace(cut=subtype.startswith("error_max"))
        if failed and not ending.cut:
            why = message_of(record.get("errors")) or message_of(record.get("result")) or subtype
            status = record.get("api_error_status")
            ending = _fault(f"{status}: {why}" if isinstance(status, int) and str(status) not in why else why)
        at = self._at(self.last.get((session, "")))
        if at is None:
            at = self._open(Group("user", place, session, "", None, content=[b'""']))
            self.places[f"at {place}"] = at
            self.last[session, ""] = f"at {place}"
        self.groups[at].ending = ending
        self.groups[at].about["result"] = {name: record[name] for name in _RESULT if record.get(name) is not None}

    def _at(self, uuid: str | None) -> int | None:
        """The group of a line, or of the nearest before it that has one."""
        seen = set()
        while uuid is not None and uuid not in seen:
            seen.add(uuid)
            group = self.places.get(uuid)
            if group is None or isinstance(group, int):
                return group
            uuid = group
        return None

    # making trees

    def end(self, run: Run) -> None:
        """Make the trees. Raises UserError where nothing was said, or lines are their own parents."""
        children, roots = self._children()
        if not any(group.kind in ("said", "error") for group in self.groups):
            raise UserError(f"{self.path} holds no message of a session")
        with noting():  # what is not understood was counted line by line
            for at in roots:
                self._grow(run, at, children)
        for name, many in self.left_out.items():
            run.log("ignored", name, {"count": many, "what": "lines"})

    def _children(self) -> tuple[list[list[int]], list[int]]:
        """The groups after each, and those that begin a conversation. What says nothing and leads nowhere is left out."""
        above: list[int | None] = []
        for group in self.groups:
            at = group.above if group.above is not None else self._at(group.parent)
            if at is None and group.parent is not None and group.parent not in self.places:
                unread({"parentUuid": group.parent}, (), "line whose parent is missing")
            above.append(at)
        _chain_unchained(self.groups, above)
        children: list[list[int]] = [[] for _ in self.groups]
        for at, parent in enumerate(above):
            if parent is not None:
                children[parent].append(at)
        roots = [at for at, parent in enumerate(above) if parent is None]
        order = list(roots)
        for at in order:
            order += children[at]
        if len(order) < len(self.groups):
            lost = min(set(range(len(self.groups))) - set(order))
            raise UserError(f"{self.groups[lost].place}: 'parentUuid' leads back to this line")

        def leads_on(at: int) -> bool:
            return bool(children[at]) or self.groups[at].kind not in ("boundary", "summary", "shown")

        for at in reversed(order):
            children[at] = [child for child in children[at] if leads_on(child)]
        return children, [at for at in roots if leads_on(at)]

    def _grow(self, run: Run, start: int, children: list[list[int]]) -> None:
        first = self.groups[start]
        tree, prompt = self._tree(run, start, children)
        stack = [(start, SessionPath.begin(run, tree, next(self.draws)))]
        while stack:
            at, path = stack.pop()
            group, after = self.groups[at], children[at]
            with at_place(group.place):
                self._hang(path, group, last=not after)
            if not after:
                path.end(group.ending)
                caller = self.callers.get(self.agents.get(first.side) or self.prompts.get(prompt) or "") if first.side else None
                if caller is not None:
                    link_subagent(run, caller, path.node.id, self.maker)
            for number, child in reversed(list(enumerate(after))):
                stack.append((child, path.branch(next(self.draws)) if number else path.branch(path.completion)))

    def _tree(self, run: Run, start: int, children: list[list[int]]) -> tuple[str, str]:
        """The tree of the conversation that begins at a group, and its prompt: the first that a person, or the caller, wrote."""
        first = self.groups[start]
        if first.side:
            at: int | None = start
            while at is not None and not (prompt := self._prompt(at)):
                at = children[at][0] if children[at] else None
        else:
            mine = (i for i, group in enumerate(self.groups) if group.session == first.session and not group.side)
            prompt = next((text for at in mine if (text := self._prompt(at))), "")
        if not prompt:
            return grow_tree(run, f"chat-{next(self.names):06d}", known=False), ""
        return grow_tree(run, f"subagent: {task_name(prompt)}" if first.side else task_name(prompt)), task_name(prompt)

    def _prompt(self, at: int) -> str:
        group = self.groups[at]
        if group.role != "user" or group.kind != "said" or group.answers:
            return ""
        content = json.loads(group.content[0])
        texts = [str(block.get("text", "")) for block in _blocks(content) if block.get("type") == "text"]
        said = [text for text in texts if text.strip() and not text.lstrip().startswith(_HARNESS)]
        return said[0] if said else ""

    def _hang(self, path: SessionPath, group: Group, last: bool) -> None:
        messages = [*self._messages(path.run, group)]
        if group.kind in ("boundary", "summary"):
            told = [*group.history, *(Insert(message.text, role="user") for message in messages)]
            kept = dict.fromkeys([*(self._at(uuid) for uuid in group.preserved), *group.kept])
            spans = [Span(node, 0, 1) for at in kept if at is not None for node in self.groups[at].nodes]
            before = path.shown() if group.kind == "summary" else ()
            path.compact([*told, *before, *(span for span in spans if span not in before)])
            return
        about = {"result": redact(plain(group.about["result"]))} if "result" in group.about else {}
        if group.kind == "error":
            if last:
                fault = _fault(message_of(group.about["error"]))
                group.ending = fault if group.ending.failure is None else group.ending
                self._fail(path, group, about)
            else:
                self._leave_out("isApiErrorMessage")
            return
        reply = group.role == "assistant" and group.kind == "said"
        if reply:
            asked = {name: group.about[name] for name in ("id", "stop_reason", "usage") if name in group.about}
            about |= {"response": redact(plain(asked))} if asked else {}
        failed = last and group.ending.failure is not None
        for number, message in enumerate(messages, 1):
            final = number == len(messages)
            fields: dict[str, Any] = self._sampled(path.run, group) if reply and message.role == "assistant" else {}
            if final and last and not failed and group.ending.cut:
                fields["stop"] = "truncated"
            ends = final and last and not failed
            path.hang(message, bool(fields.get("provenance")), ends, about if final and (last or reply) else None, **fields)
            group.nodes.append(path.node.id)
            for call in message.data.get("tool_calls", ()):
                self.callers[call["id"]] = path.node.id
        if failed:
            self._fail(path, group, about)

    def _fail(self, path: SessionPath, group: Group, about: dict[str, Any]) -> None:
        if group.ending.failure is None:  # a limit that the model ran into
            path.hang(Message("user", ""), False, True, about, stop="truncated")
        else:
            path.fail(group.ending.failure, about)

    def _sampled(self, run: Run, group: Group) -> dict[str, Any]:
        provenance = Provenance(str(group.about.get("model") or "unknown"), "", {"agent": self.maker}, 0)
        run.add(provenance)
        stops = {"max_tokens": "length", "model_context_window_exceeded": "length"}
        stop = str(group.about.get("stop_reason") or "")
        return {"provenance": provenance.hash, "stop": stops.get(stop, "stop" if stop else "")}

    def _messages(self, run: Run, group: Group) -> Iterator[Message]:
        """What a group says: a reply of several lines is read as one; of what was said to it each line is."""
        contents = [json.loads(content) for content in group.content]
        if group.role == "assistant":
            blocks = [block for content in contents for block in _blocks(content)]
            contents = [blocks] if contents else []
        for content in contents:
            value = {"role": group.role, "content": content}
            yield from read_turn(value, group.place, run.put_blob, LooseExchange())


def _chain_unchained(groups: list[Group], above: list[int | None]) -> None:
    """Lines none of which names the one before it follow each other as they stand: some tools write sessions without."""
    talks: dict[tuple[str, str], list[int]] = {}
    for at, group in enumerate(groups):
        talks.setdefault((group.session, group.side), []).append(at)
    for talk in talks.values():
        if len(talk) > 2 and all(groups[at].parent is None for at in talk) and not any(groups[at].side for at in talk):
            for before, at in pairwise(talk):
                above[at] = before


def _answers(content: Any) -> list[str]:
    """Ids of the calls whose results a content holds."""
    blocks = content if isinstance(content, list) else []
    return [str(block["tool_use_id"]) for block in blocks if block.get("type") == "tool_result"]


def _blocks(content: Any) -> list[Any]:
    return ([{"type": "text", "text": content}] if content else []) if isinstance(content, str) else content


def _readable(content: Any, spot: str) -> Any:
    """A content whose blocks are all of kinds that are known; others become their JSON as text, and are counted."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise UserError(f"{spot} must be text or a list of blocks")
    blocks = []
    for at, block in enumerate(content):
        kind = text_of(object_of(block, f"{spot}, block {at}"), "type", f"{spot}, block {at}")
        if kind == "tool_result":
            text_of(block, "tool_use_id", f"{spot}, block {at}")
            if isinstance(block.get("content"), list):
                block = {**block, "content": _readable(block["content"], f"{spot}, block {at}: 'content'")}
            blocks.append(block)
        elif kind in (*KINDS, "server_tool_use", "mcp_tool_use") or kind.endswith("_tool_result"):
            blocks.append(block)
        else:
            unread({kind: "block"}, (), "block")
            blocks.append({"type": "text", "text": as_text(block)})
    return blocks


def _shown(about: Mapping[str, Any]) -> str | None:
    """The text that an attachment puts before the model: a CLAUDE.md of the folder of a file that was read, or after a compaction
    a file itself; None of any other."""
    content = about.get("content")
    inside = content.get("file") if about.get("type") == "file" and isinstance(content, Mapping) else content
    if about.get("type") not in ("nested_memory", "file") or not isinstance(inside, Mapping):
        return None
    path, text = inside.get("path") or about.get("filename"), inside.get("content")
    return f"<system-reminder>\nContents of {path}:\n\n{text}\n</system-reminder>" if isinstance(text, str) else None


def _preserved(meta: Any) -> list[str]:
    """Uuids of the lines that a compaction kept as they were."""
    kept = meta.get("preservedMessages", meta.get("preserved_messages")) if isinstance(meta, Mapping) else None
    names = [name for name in ("allUuids", "all_uuids", "uuids") if isinstance(kept, Mapping) and name in kept]
    uuids: Any = kept[names[0]] if isinstance(kept, Mapping) and names else []
    return [uuid for uuid in uuids if isinstance(uuid, str)] if isinstance(uuids, list) else []


def _fault(why: str) -> Judged:
    """Whose fault an error of the provider is: a limit that the model ran into is the model's."""
    if any(word in why.lower() for word in _LIMITS):
        return NOTHING._replace(cut=True)
    return KNOWN.judged({"error": why or True}, "")


_LINE = {"sessionId": "s1", "isSidechain": False, "version": "2.1.0", "cwd": "/repo"}
_REPLY = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "tool_use"}
EXAMPLE: list[dict[str, Any]] = [
    {"type": "mode", "mode": "normal", "sessionId": "s1"},
    {**_LINE, "type": "user", "uuid": "u1", "parentUuid": None, "message": {"role": "user", "content": "Fix the test."}},
    {
        **_LINE,
        "type": "assistant",
        "uuid": "a1",
        "parentUuid": "u1",
        "message": {**_REPLY, "content": [{"type": "text", "text": "I look."}]},
    },
    {
        **_LINE,
        "type": "assistant",
        "uuid": "a2",
        "parentUuid": "a1",
        "message": {**_REPLY, "content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}]},
    },
    {
        **_LINE,
        "type": "user",
        "uuid": "r1",
        "parentUuid": "a2",
        "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "test.py"}]},
        "toolUseResult": {"stdout": "test.py"},
    },
    {
        **_LINE,
        "type": "assistant",
        "uuid": "a3",
        "parentUuid": "r1",
        "message": {**_REPLY, "id": "msg_2", "stop_reason": "end_turn", "content": [{"type": "text", "text": "Fixed."}]},
    },
]

register("reader", MAKER)(
    Reader(
        MAKER,
        "Sessions of Claude Code (~/.claude/projects) and its stream-json: rewinds are branches, a compaction is a context.",
        _matches,
        read_claude_code,
        (),
        "\n".join(map(json.dumps, EXAMPLE)),
    )
)
