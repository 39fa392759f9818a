"""Ask which parts of what an agent was shown caused a step of a run: take its prompt apart, sample the step without parts of it,
and store what was found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramify.base import codec
from ramify.base.errors import InfrastructureError, RamifyError, UserError
from ramify.base.ids import json_hash
from ramify.base.waiting import wait_for
from ramify.env.protocol import AnyEnvironment, Env, TaskSet, tools_of
from ramify.jobs.context.answer import CausingPart, ContextCause, WhyContext
from ramify.jobs.context.parts import ContextParts, take_apart, tool_name
from ramify.jobs.context.search import CauseSearch, FoundCause, Searched, SearchSettings, Variant
from ramify.jobs.why.attempts import attempts_in
from ramify.jobs.why.findings import found as stored_answers
from ramify.jobs.why.records import Chance
from ramify.model.function import AnyModel
from ramify.model.protocol import Prefix, known_capabilities
from ramify.rollout.commands import commands
from ramify.rollout.edits import Change, saying
from ramify.rollout.run import Episodes
from ramify.rollout.stored import WhoPlays, episodes_in, other_agent
from ramify.score.target import read_target
from ramify.trace.context import changed
from ramify.trace.db import Run
from ramify.trace.graph import short
from ramify.trace.node import Finding, Node
from ramify.trace.outcome import settled
from ramify.trace.path import as_messages

MAKER = "why --context"
"""Maker of its findings, and the kind of its journal entries and purpose of its samples."""
NOTHING = "no part stands out"
LOCAL_AT_ONCE = 4
"""Samples that a model in this process screens at once."""


@dataclass(frozen=True, slots=True)
class ContextQuestion:
    """See :func:`why_context`."""

    target: str | None = None
    outcome: bool = False
    samples: int = 300
    level: float = 0.05


class _Unplayed:
    """The environment of a run that names none: decisions are sampled, and nothing is played."""

    name = "none"

    def make(self) -> Env:
        """Raises UserError."""
        raise UserError("nothing is known that could play on: name an environment (--env)")

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """Raises UserError."""
        raise UserError("this environment has no tasks")


def why_context(
    path: Path | str,
    where: str = "",
    *,
    target: str | None = None,
    outcome: bool = False,
    samples: int = 300,
    level: float = 0.05,
    model: AnyModel | None = None,
    env: AnyEnvironment | None = None,
    trust: bool = False,
    effects: Mapping[str, str] | None = None,
    on_sample: Callable[[int], object] = lambda done: None,
) -> WhyContext:
    """Which parts of what the agent was shown caused step ``where`` (a reply's id; by default the step that ``why`` named) of
    the run at ``path``.

    ``target`` says what counts as taking the step again (:func:`ramify.score.target.read_target`); with ``outcome`` the
    attempt is played on and its success counted instead. At most ``samples`` in all; no part without an effect is named with a
    chance of more than ``level``. The result is stored as a finding, the samples in the run's journal: the same call again loads
    them. Raises UserError, and RamifyError where every sample failed.
    """
    with Run.open(path, write=True) as run:
        question = ContextQuestion(target, outcome, samples, level)
        return explained_context(run, step_of(run, where), question, WhoPlays(model, env, trust, effects or {}), on_sample)


def step_of(run: Run, where: str) -> Node:
    """The reply that is asked about. Raises UserError where there is none."""
    if where and where not in [info.name for info in run.trees()]:
        node = run.node(run.find(where))
    else:
        named = [answer for answer in stored_answers(run, where or None) if answer.node is not None]
        if not named:
            named_by = (
                f"find one (`{commands(run).why(where)}`), or name a reply by its id (`{commands(run).why()} NODE --context`)"
            )
            raise UserError(f"no step was named yet: {named_by}")
        node = run.node(str(named[-1].node))
    if node.role != "assistant":
        raise UserError(f"node {node.id[:12]} is a {node.role} message; name a reply of the agent")
    return node


def deciding_alone(run: Run, who: WhoPlays, outcome: bool) -> WhoPlays:
    """``who`` with an environment that is never played, where none is named and decisions alone are sampled."""
    if who.env is None and not isinstance(run.config.get("env"), str) and not outcome:
        return replace(who, env=_Unplayed())
    return who


class _Asked:
    """One step, as it can be asked again without parts of what was shown."""

    def __init__(self, run: Run, node: Node, question: ContextQuestion, who: WhoPlays) -> None:
        able = commands(run, who)
        who = deciding_alone(run, who, question.outcome)
        self.question, self.run, self.commands = question, run, able
        self.episodes, self.task = episodes_in(run, node, who)
        self.node = self._opening(node)
        self.position = self.episodes.prompts.at(self.node, 0)
        self.template = None if self.episodes.prompts.sends(self.position) else self.episodes.agent.template
        """Of a history that is rendered; None where messages are sent."""
        prompt = self.episodes.prompts.prompt(self.position, tools_of(self.episodes.environment))
        self.prefix = prompt.prefix
        recorded = self.node.message
        if not node.opens:  # it parted within a reply, whose beginning it shares
            recorded = as_messages(self.episodes.prompts.shown(node, len(node)))[-1]
        self.target = read_target(question.target, recorded)
        if self.template is None:
            messages, tools = self.prefix.messages, _tools(self.prefix)
        else:
            messages, tools = tuple(as_messages(self._shown())), []
        called = {call.name for call in recorded.calls} | {self.target.tool}
        self.parts = take_apart(messages, tools, called)
        if not self.parts.size:
            raise UserError(f"the prompt of node {node.id[:12]} has no part that could be left out")
        self.success = ended_well(run, node) if question.outcome else None
        self.sampling = self.episodes.as_asked(self.episodes.agent.sampling, self.prefix)
        self.greedy = self.sampling.temperature == 0 and "batch_invariant" in known_capabilities(self.episodes.agent.model)
        self.first_failure = ""
        about = [MAKER, node.id, self.episodes.provenance.hash, self.target.identity, question.outcome]
        self._known = {entry.key: entry.payload for entry in run.journal(MAKER)}
        self._about = json_hash(about)
        self._gate = asyncio.Semaphore(8)

    def _opening(self, node: Node) -> Node:
        tree = self.episodes.load(node.tree)
        while not node.opens:
            node = tree.node(str(node.parent))
        return node

    def _shown(self) -> list[Any]:
        return self.position.shown or self.episodes.prompts.shown(self.position.parent, self.position.offset)

    async def decide(self, variants: Sequence[Variant]) -> list[bool | None]:
        """See :data:`ramify.jobs.context.search.Decisions`. What is stored is loaded."""
        return list(await asyncio.gather(*map(self._one, variants)))

    async def _one(self, variant: Variant) -> bool | None:
        index = 0 if self.greedy and not self.question.outcome else variant.index
        what = json_hash([sorted(variant.left_out), variant.filler, self.parts.size])
        key = f"{self._about}/{what}/{index}"
        if key not in self._known:
            async with self._gate:
                try:
                    if key not in self._known:
                        self._known[key] = await self._sampled(variant, what, index)
                except InfrastructureError as error:
                    self.first_failure = self.first_failure or str(error)
                    return None
                self.run.log(MAKER, key, self._known[key])
                self.run.commit()
        entry = self._known[key]
        return bool(entry["yes"]) if entry["yes"] is not None else None

    async def _sampled(self, variant: Variant, what: str, index: int) -> dict[str, Any]:
        purpose = f"{MAKER} {what[:12]}"
        if self.question.outcome:
            change = None if not variant.left_out else self._change(variant, what)
            parent, tree = self.position.parent, self.node.tree
            attempt = await self.episodes.edited(tree, self.task, parent.id, len(parent), index, change=change, purpose=purpose)
            if attempt.failure is not None:
                raise InfrastructureError("env", attempt.failure)
            return {"yes": attempt.outcome if attempt.outcome is None else attempt.outcome == self.success}
        prefix = self._without(variant)
        at = (self.position.parent.id, self.position.offset, purpose)
        completion = await self.episodes.sampler.one(prefix, self.sampling, at, index, MAKER)
        yes = await self.target.holds(completion.message, prefix.messages)
        return {"yes": yes, "said": short(completion.message.spoken(), 200)}

    def _without(self, variant: Variant) -> Prefix:
        if not variant.left_out:
            return self.prefix
        if self.template is None:
            tools = tools_of(self.episodes.environment)
            return self.episodes.prompts.prompt(self.position, tools, None, lambda sent: _left(sent, self.parts, variant)).prefix
        parts = saying(self.parts.texts(variant.left_out, variant.filler), self.template)(self._shown())
        return self.episodes.prompts.prompt(self.episodes.prompts.instead(self.position, parts), ()).prefix

    def _change(self, variant: Variant, what: str) -> Change:
        if self.template is not None:
            return Change(rewrite=saying(self.parts.texts(variant.left_out, variant.filler), self.template))
        return Change(shown=lambda prefix: _left(prefix, self.parts, variant), name=what)


def ended_well(run: Run, node: Node) -> bool:
    """Whether the attempt through ``node`` succeeded, of several the first that was not forked.

    Raises UserError where nobody judged one."""
    views = attempts_in(run, run.tree_info(node.tree), settled(run))
    whole = (node.id, len(node))  # attempts that part within it took another step
    through = [v for v in views if v.success is not None and any((part.id, n) == whole for part, n in v.path.segments)]
    view = min(through, key=lambda v: v.fork, default=None)
    if view is None or view.success is None:
        raise UserError(f"--outcome: no attempt through node {node.id[:12]} was judged, so there is no outcome to ask about")
    return view.success


def _left(prefix: Prefix, parts: ContextParts, variant: Variant) -> Prefix:
    """A prompt of messages, of which the first are those that were taken apart, without what is left out."""
    gone = parts.tools_left(variant.left_out)
    messages = parts.without(prefix.messages, variant.left_out, variant.filler)
    tools, asked = prefix.tools, dict(prefix.asked)
    if gone:
        tools = tuple(tool for tool in tools if tool_name(tool) not in gone)
        listed = asked.get("tools")
        if isinstance(listed, list):
            left = [tool for tool in listed if not (isinstance(tool, Mapping) and tool_name(tool) in gone)]
            asked = {name: value for name, value in asked.items() if name != "tools"} | ({"tools": left} if left else {})
    return replace(prefix, messages=messages, tools=tools, asked=asked)


def _tools(prefix: Prefix) -> list[Mapping[str, Any]]:
    listed = prefix.asked.get("tools") or list(prefix.tools)
    return [tool for tool in listed if isinstance(tool, Mapping)] if isinstance(listed, list) else []


def counted_parts(run: Run, node: Node, question: ContextQuestion, who: WhoPlays) -> int:
    """How many parts the prompt of a step has. Nothing is sampled."""
    return _Asked(run, node, question, who).parts.size


def explained_context(
    run: Run, node: Node, question: ContextQuestion, who: WhoPlays, on_sample: Callable[[int], object] = lambda done: None
) -> WhyContext:
    """The answer about one step of a run that is open for writing, stored in it; see :func:`why_context`."""
    if question.samples < 1:
        raise UserError("--context samples the step again, so --samples is at least 1")
    asked = _Asked(run, node, question, who)
    done = 0

    async def decide(variants: Sequence[Variant]) -> list[bool | None]:
        nonlocal done
        decisions = await asked.decide(variants)
        done += len(variants)
        on_sample(done)
        return decisions

    at_once = LOCAL_AT_ONCE if "taps" in known_capabilities(asked.episodes.agent.model) else 1
    settings = SearchSettings(budget=question.samples, level=question.level, at_once=at_once)
    parts = asked.parts
    leaves, children = [part.leaves for part in parts.parts], [part.children for part in parts.parts]
    search = CauseSearch(leaves, children, parts.top, decide, settings, seed=asked.episodes.sampler.seed)
    searched = wait_for(search.run())
    if searched.failed == searched.samples:
        raise RamifyError(f"every sample failed, the first at {asked.first_failure}")
    answer = _answer(asked, searched)
    others = [finding for finding in run.findings(maker=MAKER) if finding.node != asked.node.id]
    run.conclude(MAKER, [*others, _finding(answer, asked)])
    run.commit()
    return answer


def _answer(asked: _Asked, searched: Searched) -> WhyContext:
    causes = tuple(_cause(asked.parts, cause) for cause in searched.causes)
    whole, bare = Chance.of(searched.whole), Chance.of(searched.bare)
    measured = (
        f"the attempt {'succeeds' if asked.success else 'fails'}" if asked.question.outcome else f"the agent {asked.target.says}"
    )
    caveats = list(_caveats(asked, searched))
    return WhyContext(
        tree=asked.node.tree,
        node=asked.node.id,
        action=short(asked.target.recorded, 200),
        target=("success" if asked.success else "failure") if asked.question.outcome else asked.target.name,
        measured="outcome" if asked.question.outcome else "decision",
        verdict="parts" if causes else "none",
        headline=_headline(causes, whole, measured, searched),
        whole=whole,
        bare=bare,
        causes=causes,
        parts=asked.parts.size,
        level=asked.question.level,
        samples=searched.samples,
        screened=searched.screened,
        tried=searched.tried,
        failed=searched.failed,
        spent=searched.spent,
        run=str(asked.run.folder),
        commands=asked.commands,
        caveats=tuple(caveats),
    )


def _cause(parts: ContextParts, cause: FoundCause) -> ContextCause:
    rows = zip(cause.parts, cause.kept, cause.deleted, cause.filled, strict=True)
    shown = tuple(
        CausingPart(part.where, part.text, part.role, *map(Chance.of, counts))
        for number, *counts in rows
        if (part := parts.parts[number])
    )
    kind = cause.kind if cause.kind in ("together", "each") else "one"
    return ContextCause(kind, shown, cause.level)


def _headline(causes: Sequence[ContextCause], whole: Chance, measured: str, searched: Searched) -> str:
    if not causes:
        if whole.n and not whole.k:
            return (
                f"No part stands out: in the context as it was {measured} in 0 of {whole.n} samples, so the step is not repeated."
            )
        yet = " yet, and the budget is spent" if searched.spent else ""
        return f"No part stands out{yet}: in the context as it was {measured} in {whole.k} of {whole.n} samples."
    first = causes[0]
    named = [f"{part.where} (`{short(' '.join(part.text.split()), 60)}`)" for part in first.parts]
    joined = f"{', '.join(named[:-1])} {'and' if first.kind == 'together' else 'or'} {named[-1]}" if len(named) > 1 else named[0]
    part = first.parts[0]
    without = f"{part.deleted} without {'it' if len(named) == 1 else 'one of them'}, {part.filled} with filler instead"
    if first.kind == "each":
        counted = f"{part.kept} of the samples with one, {part.deleted} without any"
        return f"Because of {joined}, each enough alone: {measured} in {counted}."
    lead = "Because of " + (f"{joined} together" if first.kind == "together" else joined)
    return f"{lead}: {measured} in {part.kept} of the samples as shown, {without}."


def _caveats(asked: _Asked, searched: Searched) -> list[str]:
    caveats = [*other_agent(asked.episodes, asked.node)]
    if asked.greedy and not asked.question.outcome:
        caveats.append("the agent samples greedily: each context was sampled once, so that counts are not rates")
    if searched.failed:
        caveats.append(f"some samples failed, the first at {asked.first_failure}")
    if not searched.causes and searched.unconfirmed:
        named = ", ".join(asked.parts.parts[part].where for part in searched.unconfirmed)
        caveats.append(f"not confirmed, and therefore not named: {named}")
    if asked.template is not None and tools_of(asked.episodes.environment):
        caveats.append("the tools' schemas are in the model's template, so they were not left out")
    if changed(asked.node):
        caveats.append("what the agent was shown there had been shortened or changed; the parts are those of what it was shown")
    return caveats


def _finding(answer: WhyContext, asked: _Asked) -> Finding:
    name = NOTHING if answer.verdict == "none" else "because of what was shown"
    cause = answer.causes[0].parts[0] if answer.causes else None
    value = None if cause is None else points_less(cause.kept, cause.deleted)
    identity, evidence = identity_of(asked.question, asked.episodes), codec.to_json(answer)
    return Finding(
        name, MAKER, answer.headline, answer.node, 0, answer.commands.show, value, "points less without it", evidence, identity
    )


def identity_of(question: ContextQuestion, episodes: Episodes) -> dict[str, Any]:
    """What decides an answer about a step besides the run."""
    return {"question": codec.to_json(question), "agent": episodes.provenance.to_json()}


def points_less(kept: Chance, other: Chance) -> float | None:
    """By how many points a chance fell; None where one of the two was not counted."""
    return None if kept.p is None or other.p is None else 100 * (kept.p - other.p)


def found_contexts(run: Run) -> list[WhyContext]:
    """What earlier calls found out and stored in ``run``."""
    answers = [codec.from_json(WhyContext, finding.evidence) for finding in run.findings(maker=MAKER)]
    return [replace(answer, commands=answer.commands.of(run)) for answer in answers]
