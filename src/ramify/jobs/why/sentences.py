"""What an answer says in sentences: its headline, and what a reader must know besides."""

from __future__ import annotations

import json

from ramify.base.words import plural
from ramify.jobs.why.alternatives import words
from ramify.jobs.why.answer import Why
from ramify.jobs.why.records import OTHER, BrokenRule, Share
from ramify.render.numbers import percent, points
from ramify.trace.graph import short
from ramify.trace.message import as_text, split_reply, unspoken


def _named(action: str) -> str:
    """An action as a headline has it: of a reply that calls tools the calls alone."""
    _, calls = split_reply(unspoken(action))
    return words(", ".join(_called(**call["function"]) for call in calls) if calls else action)


def _called(name: str, arguments: str) -> str:
    given = json.loads(arguments)
    only = next(iter(given.values())) if len(given) == 1 else None
    return f"{name}: {only}" if isinstance(only, str) else f"{name}({as_text(given)})"


def lost(found: Why, there: int) -> str:
    """The step that lost it (of a success: won it), and what most of the others did there, of ``there`` attempts in all."""
    verb = "Won" if found.success else "Lost"
    said = found.action or "", found.alternatives[0].action if found.alternatives else ""
    here, other = map(_named, said)
    if here == other:  # they differ in what was said beside the calls
        here, other = map(words, said)
    whose = "" if found.conversation is None else f" (conversation {found.conversation})"
    text = f"{verb} at `{_unlike(here, other)}`{whose}: success {found.before} -> {found.after}."
    if found.alternatives:
        best = found.alternatives[0]
        did = f"did {OTHER}" if best.action == OTHER else f"chose `{_unlike(other, here)}`"
        text += f" From the same state {best.n} of {plural(there, 'attempt')} {did}: {percent(best.p, 0)}."
    return text


def _unlike(action: str, other: str, width: int = 60) -> str:
    """An action in at most ``width`` characters; of a long one that begins as ``other`` does,
    its beginning and where they part."""
    same = next((i for i, (a, b) in enumerate(zip(action, other, strict=False)) if a != b), min(len(action), len(other)))
    if len(action) <= width or same < width - 10 or action == other:
        return short(action, width)
    return f"{action[:20]}…{short(action[same - 10 :], width - 21)}"


def together(whole: Why, share: Share) -> str:
    """The steps with credit, where no single one stands out."""
    *rest, last = (f"`{short(_named(one.action), 60)}` ({points(one.share or 0.0, 0)})" for one in share.credited)
    steps = f"{', '.join(rest)} and {last}" if rest else last
    verb = "won" if whole.success else "lost"
    return f"No one step {verb} it: success {share.start} -> {share.end}, of which {steps} points."


def nothing(whole: Why) -> str:
    """That no step stands out, and what success was."""
    low = whole.before
    if whole.success:
        return f"No step stands out: success was {low} at the start, and no step raised it by more than chance."
    if low.n and low.k == 0 and all(not s.after.k for s in whole.steps if s.after is not None):
        return f"No step stands out: success was 0% from the start (0 of {low.n}), so there was nothing to lose."
    head = "No step stands out" + (" yet, and the budget is spent" if whole.spent else "")
    return f"{head}: success was {low} at the start and {whole.after} at the end, and no step lost more than chance."


def by_rule(rule: BrokenRule, note: str) -> str:
    """The step that a rule names."""
    whose = "of this run" if rule.of_run else "public"
    return (
        f"Suspect `{short(_named(rule.action), 60)}` ({rule.rule}): {rule.why}. Of {rule.n} successful logs ({whose}) {rule.k} "
        f"{'breaks' if rule.k == 1 else 'break'} this rule or a rarer rule. {note}."
    )


def hint(rule: BrokenRule) -> str:
    """A step that breaks a rule which too many successful logs break, too."""
    return f" Step {rule.step} has a {rule.rule}, as {rule.k} of {rule.n} successful logs have: a hint, and no finding."


def compared(comparable: int, note: str) -> str:
    """That of ``comparable`` steps none differs, by attempts alone."""
    few = "no other attempt did anything else in a state that this one came through"
    none = f"of {plural(comparable, 'step')} that can be compared with other attempts none differs by more than chance"
    return f"No step stands out: {none if comparable else few}. {note}."


def spent(samples: int | None, share: bool) -> str:
    """That the budget of ``samples`` was too small."""
    wanted = "credit was shared" if share else "a step stood out"
    return f"the budget of {samples} samples was spent before {wanted}: give the same command with a larger --samples to continue"
