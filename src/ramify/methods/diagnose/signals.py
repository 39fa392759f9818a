"""What speaks for a finding without a patch (section 3.8): signals, each one of a few levels,
from which a gate computes a probability."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from ramify.methods.diagnose.case import CaseFile, Diagnosis
from ramify.methods.diagnose.code import identifiers, words
from ramify.methods.diagnose.loop import FINAL, TOLD, Speaker, opening, written_call
from ramify.methods.diagnose.replies import Located, read_reply
from ramify.methods.diagnose.tools import RepoTools
from ramify.trace.message import Message


def agreement(cases: Sequence[CaseFile]) -> str:
    """``consistency``: what the first findings of several independent localizations share: the span, the file, or nothing."""
    first = [case.findings[0] for case in cases if case.findings]
    if len(first) < len(cases) or len(first) < 2:
        return "none"
    if len({one.file for one in first}) > 1:
        return "none"
    latest, earliest = max(one.start for one in first), min(one.end for one in first)
    return "span" if latest <= earliest else "file"


def signals_of(
    case: CaseFile, tools: RepoTools, others: Sequence[CaseFile] = (), executed: str | None = None, rival: bool | None = None
) -> dict[str, str]:
    """The signals of the first finding of ``case``; empty without one.

    ``others`` are further localizations of the same issue; ``executed`` what a reproduction says of the span (a level of
    ``self_check``); ``rival`` whether the same place was picked again beside its nearest rivals.
    """
    if not case.findings:
        return {}
    first = case.findings[0]
    found = {"coverage": _coverage(first), "anchor": _anchor(first, case.issue, tools)}
    found["recall_risk"] = "memory" if case.meta.zero_tool else "evidence"
    if others:
        found["consistency"] = agreement([case, *others])
    if executed is not None:
        found["self_check"] = executed
    if rival is not None:
        found["discrimination"] = "same" if rival else "other"
    return found


def rival_messages(case: CaseFile, tools: RepoTools) -> list[Message]:
    """A conversation that shows the first finding's file and its two or three nearest rivals, and asks for the answer."""
    own = case.findings[0].file
    siblings = [path for path in tools.snapshot.paths if PurePosixPath(path).parent == PurePosixPath(own).parent and path != own]
    near = [] if tools.snapshot.large else [*tools.code.imports.get(own, ()), *tools.code.importers.get(own, ())]
    at = tools.snapshot.paths.index(own)
    siblings.sort(key=lambda path: (abs(tools.snapshot.paths.index(path) - at), path))
    chosen = list(dict.fromkeys([own, *siblings[:2], *near[:1]]))
    messages = opening(tools, case.issue)
    for path in sorted(chosen):
        shown = tools.call("view_file", {"path": path})
        messages += [
            Message("assistant", written_call("view_file", path=path)),
            Message(TOLD, f"<observation>\n{shown.text}\n</observation>"),
        ]
    return [*messages, Message(TOLD, FINAL)]


def picks_same(case: CaseFile, message: Message) -> bool:
    """``discrimination``: whether a reply to :func:`rival_messages` names the same lines again."""
    done, own = read_reply(message), case.findings[0]
    if not isinstance(done, Located):
        return False
    best = done.found[0]
    return best.file == own.file and best.start <= own.end and own.start <= best.end


def rivals(case: CaseFile, tools: RepoTools, speaker: Speaker) -> bool | None:
    """:func:`picks_same` of what a function in this process answers; None without a finding."""
    return picks_same(case, speaker(rival_messages(case, tools)).message) if case.findings else None


def _coverage(one: Diagnosis) -> str:
    """``coverage``: how much of the span ``view_file`` displayed."""
    views = [shown.lines for shown in one.evidence if shown.tool == "view_file"]
    seen = {line for first, last in views for line in range(first, last + 1)}
    lines = range(one.start, one.end + 1)
    held = sum(line in seen for line in lines)
    return "seen" if held == len(lines) else "part" if held else "unseen"


def _anchor(one: Diagnosis, issue: str, tools: RepoTools) -> str:
    """``anchor``: whether names or words of the issue occur in the span, or in the files that import it."""
    text = "\n".join(tools.snapshot.lines(one.file)[one.start - 1 : one.end])
    named = {name for name in identifiers([issue]) if "_" in name or any(c.isupper() for c in name[1:])}
    if named & identifiers([text]):
        return "span"
    common = {word for word in words(issue) if len(word) > 3} & {word for word in words(text) if len(word) > 3}
    if len(common) >= 3:
        return "span"
    if tools.snapshot.large:
        return "none"
    callers = "\n".join("\n".join(tools.snapshot.lines(path)) for path in tools.code.importers.get(one.file, ())[:20])
    return "callers" if named & identifiers([callers]) else "none"
