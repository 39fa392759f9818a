"""Rules as people write them: a file of rules, or the CLAUDE.md and AGENTS.md that a coding agent was shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.base import codec
from ramify.base.config import read_toml
from ramify.base.errors import UserError
from ramify.base.files import reason
from ramify.base.skills import split_skill
from ramify.methods.governance.predicates import EDITORS, NEEDS, Call, UnreadableError, forbids
from ramify.trace.lines import read_document
from ramify.trace.message import Message


@dataclass(frozen=True)
class Rule:
    """A rule to look for. ``predicate`` says what it forbids, where that can be decided from calls."""

    text: str
    predicate: Mapping[str, Any] | None = None


def read_rules(path: Path) -> list[Rule]:
    """Rules of a file: one a line; TOML with ``[[rule]]`` tables or JSON with a list, of ``text`` and ``predicate``; or Markdown
    (CLAUDE.md, AGENTS.md), as :func:`rules_of` reads it.

    Raises UserError naming the file and the rule that is none.
    """
    if path.suffix == ".toml":
        listed: Any = read_toml(path).get("rule")
    elif path.suffix == ".json":
        listed = read_document(path)
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the rules {path}: {reason(error)}") from None
        if path.suffix == ".md":
            if not (written := rules_of(text)):
                raise UserError(f"{path} holds no rule: of Markdown each item of a list and each paragraph is one")
            return written
        listed = [line.strip() for line in text.splitlines() if line.strip()]
    if not isinstance(listed, list) or not listed:
        raise UserError(f"{path} holds no rule: write one a line, [[rule]] tables (.toml), or a list (.json)")
    rules = []
    for at, value in enumerate(listed):
        value = {"text": value} if isinstance(value, str) else value
        if not isinstance(value, dict):
            raise UserError(f"{path}: rule {at} is neither text nor a table")
        rules.append(codec.from_json(Rule, value, f"{path}: rule {at}"))
        if rules[-1].predicate is not None:
            _check(rules[-1].predicate, f"{path}: rule {at}")
    return rules


def _check(predicate: Mapping[str, Any], where: str) -> None:
    try:
        tool = predicate.get("tool")
        forbids(predicate, tool if isinstance(tool, str) else (tool or [""])[0], {})
        for name in ("pattern", "control"):
            re.compile(str(predicate.get(name, "")))
    except UnreadableError:
        pass  # an empty call decides nothing: the predicate itself is one
    except re.error as error:
        raise UserError(f"{where}: its regular expression is none: {error}") from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def breaks(rule: Rule, name: str, arguments: Mapping[str, Any], earlier: Sequence[Call] | None = None) -> bool | None:
    """Whether a call breaks ``rule``; None where no predicate says what that forbids, or the call cannot be read."""
    if rule.predicate is None:
        return None
    try:
        return forbids(rule.predicate, name, arguments, earlier)
    except UnreadableError:
        return None


# -- Markdown


def rules_of(markdown: str) -> list[Rule]:
    """Each item of a list and each paragraph as a rule, with what of it can be checked without a judge (:func:`checkable`).

    Headings, code, tables, comments, quotations and lines that only lead to a list are none.
    """
    from markdown_it import MarkdownIt  # of the extra `governance`; rich brings it to the core as well

    _, text = split_skill(markdown)  # without front matter
    rules, skipped = list[str](), 0
    for token in MarkdownIt("commonmark").parse(text):
        if token.type.startswith(("blockquote", "heading")):
            skipped += token.nesting
        elif token.type == "inline" and not skipped:
            spoken = token.content
            for comment in (part.content for part in token.children or () if part.content.startswith("<!--")):
                spoken = spoken.replace(comment, "")
            spoken = " ".join(spoken.split())
            rules += [] if not spoken or _NO_RULE.match(spoken) or spoken.endswith(":") else [_BOX.sub("", spoken)]
    return [Rule(rule, checkable(rule)) for rule in dict.fromkeys(rules)]


_BOX = re.compile(r"\[[ xX]\] ")
_NO_RULE = re.compile(r"\||@\S+$")
"""Tables, and files that are imported."""
_NOT = r"\b(?:never|do not|don't|must not|mustn't|may not|must never)\b[^`.;]{0,20}?"
_NAMED = r"(`[^`]+`(?:(?:,| or|, or)\s+`[^`]+`)*)"
_FORBIDDEN = (
    (re.compile(rf"{_NOT}\b(?:run|execute|invoke)\b\s+{_NAMED}", re.IGNORECASE), "command"),
    (re.compile(rf"{_NOT}\b(?:edit|modify|touch|change|write to|delete)\b[^`.;]{{0,30}}?{_NAMED}", re.IGNORECASE), "path"),
)
_FIRST = re.compile(
    r"\b(?:run|execute)\s+`([^`]+)`[^`.;]{0,20}?\bbefore\s+"
    r"(?:(?:you |every |each |any |a |running )*)(?:`([^`]+)`|(commit|push)\w*)",
    re.IGNORECASE,
)


def checkable(rule: str) -> dict[str, Any] | None:
    """The predicate of a rule that names in backquotes what it forbids: a command that is never run, a file that is never edited,
    or a command that is run before another. None of any other rule, and of one that says what is allowed all the same."""
    if re.search(r"\b(?:unless|except|without asking|if)\b", rule, re.IGNORECASE):
        return None
    for pattern, kind in _FORBIDDEN:
        if hit := pattern.search(rule):
            named = re.findall(r"`([^`]+)`", hit[1])
            if kind == "command":
                return {"kind": "command", "deny": named}
            if all(re.search(r"[/.*]", name) and " " not in name for name in named):
                return {"kind": "path", "tool": list(EDITORS), "deny": [glob for name in named for glob in _globs(name)]}
    if hit := _FIRST.search(rule):
        return {"kind": NEEDS, "command": hit[2] or f"git {hit[3].lower()}", "first": hit[1]}
    return None


def _globs(name: str) -> list[str]:
    """Paths that a name in a rule means: the file, or all below the folder."""
    bare = name.removeprefix("./").rstrip("/")
    whole = bare if bare.startswith(("/", "*")) else f"*/{bare}"
    return [f"{whole}/*"] if name.endswith("/") else [whole, f"{whole}/*"]


# -- what a session shows

_SHOWN = (
    re.compile(
        r"^Contents of \S*(?:CLAUDE|AGENTS)[\w.]*\.md[^\n]*:\n\n(.*?)(?=^Contents of |^# currentDate$|^\s*</system-reminder>|\Z)",
        re.DOTALL | re.MULTILINE,
    ),
    re.compile(r"^# AGENTS\.md instructions[^\n]*\n\n<INSTRUCTIONS>\n(.*?)</INSTRUCTIONS>", re.DOTALL | re.MULTILINE),
)
"""How Claude Code and Codex show the model a CLAUDE.md or AGENTS.md."""


def instructions(messages: Sequence[Message]) -> list[str]:
    """The texts of each CLAUDE.md and AGENTS.md that messages show, as Claude Code and Codex write them."""
    return [text for message in messages if message.role != "assistant" for form in _SHOWN for text in form.findall(message.text)]
