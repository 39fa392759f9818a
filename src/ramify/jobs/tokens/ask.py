"""Ask at which tokens a step of a run could have gone elsewhere: force each likely other token, sample on, and store what was
found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ramify.base import codec
from ramify.base.errors import InfrastructureError, RamifyError, UserError
from ramify.base.ids import json_hash
from ramify.base.waiting import wait_for
from ramify.env.protocol import AnyEnvironment, tools_of
from ramify.jobs.context.ask import ContextQuestion, deciding_alone, ended_well, identity_of, points_less, step_of
from ramify.jobs.tokens.answer import TokenOdds, WhyTokens
from ramify.jobs.tokens.search import OtherToken, SearchedTokens, TokenSearch, TriedToken
from ramify.jobs.why.records import Chance
from ramify.methods.cliffs.forks import TAKES, ReplyForks
from ramify.model.function import AnyModel
from ramify.model.protocol import known_capabilities, require
from ramify.render.numbers import percent
from ramify.rollout.commands import commands
from ramify.rollout.fork import WantedArm, arms
from ramify.rollout.stored import WhoPlays, episodes_in, other_agent
from ramify.rollout.token_traces import TokenTrace
from ramify.score.judge import FunctionJudge, Judge
from ramify.score.target import StepTarget, read_target
from ramify.trace.db import Run
from ramify.trace.graph import short
from ramify.trace.message import Message
from ramify.trace.node import Annotation, Finding, Node

MAKER = "why --tokens"
"""Maker of its findings and annotations, the kind of its journal entries and purpose of its samples."""
ODDS = "odds"
"""Name of its annotations: at each position the other tokens that were tried there."""
NOTHING = "no token stands out"
LESS = "points less with the other token"
"""Unit of its findings."""
TOP = 5
"""Likeliest tokens that are known of each position; servers name no more of a completion."""
LEAST_ODDS = 0.01
"""Probability of another token from which on it is tried."""


def why_tokens(
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
) -> WhyTokens:
    """At which tokens of step ``where`` (a reply's id; by default the step that ``why`` named) of the run at ``path`` another
    token would have led elsewhere.

    Parameters as :func:`ramify.jobs.context.ask.why_context`. The result is stored as a finding, its odds as annotations of the
    reply, the samples in the run's journal. Raises UserError, NeedsError where the model does not continue inside a reply or
    names no other tokens, and RamifyError where every sample failed.
    """
    with Run.open(path, write=True) as run:
        question = ContextQuestion(target, outcome, samples, level)
        return explained_tokens(run, step_of(run, where), question, WhoPlays(model, env, trust, effects or {}), on_sample)


class _AskedTokens:
    """One reply, as it can be continued after any of its tokens and another one."""

    def __init__(self, run: Run, node: Node, question: ContextQuestion, who: WhoPlays) -> None:
        self.run, self.node, self.question, self.commands = run, node, question, commands(run, who)
        self.episodes, self.task = episodes_in(run, node, deciding_alone(run, who, question.outcome))
        agent = self.episodes.agent
        require(agent.model, ("tokens", "continue"), "a fork inside a reply")
        if node.tokens is None or node.sampled is None or node.ends is None:
            raise UserError(f"node {node.id[:12]} is text alone: the tokens of its reply were not recorded")
        assert agent.template is not None
        prompts = self.episodes.prompts
        position = (
            prompts.at(node, 0) if node.opens else prompts.at(self.episodes.load(node.tree).node(str(node.parent)), node.offset)
        )
        begun = position.begun or ""
        prefix = prompts.prompt(position, tools_of(self.episodes.environment)).prefix
        given, sampling = prefix.tokens, self.episodes.as_asked(agent.sampling, prefix)
        assert given is not None
        self.tokenizer = agent.template.tokenizer
        self.target: StepTarget = read_target(question.target, Message("assistant", begun + node.text, node.data))
        self.trace = TokenTrace(
            node.id,
            self.task.id,
            tuple(given.tolist()),
            tuple(node.tokens[node.sampled].tolist()),
            sampling,
            stop=node.stop,
            data={"answer": self.target.recorded},
        )

        async def same(text: str, trace: TokenTrace) -> bool | None:
            return await self.target.holds(Message("assistant", begun + text), ())

        verifier: Judge = self.target.judge or FunctionJudge(same, TAKES)
        self.forks = ReplyForks(
            agent.model,
            self.tokenizer,
            verifier,
            seed=self.episodes.sampler.seed,
            truncated="graded",
            eos=agent.template.stop_tokens,
        )
        self.success = ended_well(run, node) if question.outcome else None
        here = "batch_invariant" in known_capabilities(agent.model)
        self.exact = sampling.temperature == 0 and here and not question.outcome
        about = [MAKER, node.id, self.episodes.provenance.hash, self.target.identity, question.outcome]
        self._about = json_hash(about)
        self._known = {entry.key: entry.payload for entry in run.journal(MAKER)}
        self.first_failure = ""
        self.done = 0
        self.on_sample: Callable[[int], object] = lambda done: None

    def others(self) -> tuple[list[dict[int, float]], list[OtherToken]]:
        """The likeliest tokens of each position, and those that could have stood there instead of the reply's own. The token that
        ends the reply is left out, and where attempts are played on, one that would end it, too."""
        key = f"{self._about}/odds"
        if key not in self._known:
            odds = wait_for(self.forks.odds(self.trace, TOP))
            self.run.log(MAKER, key, [{str(token): chance for token, chance in row.items()} for row in odds])
            self._known[key] = self.run.journal(MAKER, key)[0].payload
        rows = [{int(token): float(chance) for token, chance in row.items()} for row in self._known[key]]
        ends = self.forks.eos if self.question.outcome else frozenset[int]()
        tokens = zip(self.trace.response_ids, rows, strict=True)
        others = [
            OtherToken(t, token, chance)
            for t, (own_token, row) in enumerate(tokens)
            if own_token not in self.forks.eos
            for token, chance in row.items()
            if token != own_token and token not in ends and chance >= LEAST_ODDS
        ]
        return rows, others

    async def sample(self, t: int, token: int | None, purpose: str, index: int) -> bool | None:
        """See :data:`ramify.jobs.tokens.search.SampleAt`. What is stored is loaded."""
        key = f"{self._about}/{t}/{token}/{purpose}/{index}"
        if key not in self._known:
            play = self._played if self.question.outcome else self._decided
            try:
                yes = await play(t, token, f"{MAKER} {purpose}", index)
            except InfrastructureError as error:
                yes, self.first_failure = None, self.first_failure or str(error)
            if yes is not None:
                self.run.log(MAKER, key, yes)
                self.run.commit()
            self._known[key] = yes
        self.done += 1
        self.on_sample(self.done)
        known: bool | None = self._known[key]
        return known

    async def _decided(self, t: int, token: int | None, purpose: str, index: int) -> bool | None:
        place = t + 1 if token is None else (t, token)
        counts = await self.forks.count(self.trace, place, 1, purpose, start=index)
        self.first_failure = self.first_failure or self.forks.first_failure
        return bool(counts.k) if counts.n else None

    async def _played(self, t: int, token: int | None, purpose: str, index: int) -> bool | None:
        at = self.node.head + t
        place, edit = (at + 1, None) if token is None else (at, {"append_tokens": [token]})
        wanted = WantedArm(self.node.id, place, edit, start=index)
        (arm,) = await arms(self.episodes, self.node.tree, self.task, [wanted], 1, purpose)
        (attempt,) = arm.attempts
        self.first_failure = self.first_failure or attempt.failure or ""
        return None if attempt.outcome is None else attempt.outcome == self.success


def explained_tokens(
    run: Run, node: Node, question: ContextQuestion, who: WhoPlays, on_sample: Callable[[int], object] = lambda done: None
) -> WhyTokens:
    """The answer about one step of a run that is open for writing, stored in it; see :func:`why_tokens`."""
    if question.samples < 1:
        raise UserError("--tokens samples on from tokens of the step, so --samples is at least 1")
    asked = _AskedTokens(run, node, question, who)
    asked.on_sample = on_sample
    odds, others = asked.others()
    search = TokenSearch(others, asked.sample, question.samples, question.level, asked.exact)
    with asked.episodes.committing():
        searched = wait_for(search.run())
    if searched.samples and searched.failed == searched.samples:
        raise RamifyError(f"every sample failed, the first at {asked.first_failure}")
    answer = _answer(asked, searched, odds, len(others))
    run.add(*_annotations(node, answer))
    findings = [finding for finding in run.findings(maker=MAKER) if finding.node != node.id]
    run.conclude(MAKER, [*findings, _finding(answer, asked)])
    run.commit()
    return answer


def _answer(asked: _AskedTokens, searched: SearchedTokens, odds: list[dict[int, float]], known: int) -> WhyTokens:
    tried = tuple(_odds(asked, entry, odds) for entry in searched.tried)
    verb = "succeeds" if asked.success else "fails"
    measured = f"the attempt {verb}" if asked.question.outcome else f"the agent {asked.target.says}"
    caveats = [*other_agent(asked.episodes, asked.node)]
    if asked.exact:
        caveats.append("the agent samples greedily: each continuation was sampled once, so that counts are not rates")
    if searched.failed:
        caveats.append(f"some samples failed, the first at {asked.first_failure}")
    return WhyTokens(
        tree=asked.node.tree,
        node=asked.node.id,
        action=short(asked.target.recorded, 200),
        target=("success" if asked.success else "failure") if asked.question.outcome else asked.target.name,
        measured="outcome" if asked.question.outcome else "decision",
        verdict="tokens" if any(entry.named for entry in tried) else "none",
        headline=_headline(tried, measured, searched, known),
        tried=tried,
        tokens=asked.trace.length,
        known=known,
        level=asked.question.level,
        samples=searched.samples,
        screened=searched.screened,
        failed=searched.failed,
        spent=searched.spent,
        run=str(asked.run.folder),
        commands=asked.commands,
        caveats=tuple(caveats),
    )


def _odds(asked: _AskedTokens, entry: TriedToken, odds: list[dict[int, float]]) -> TokenOdds:
    t, token = entry.other.t, asked.trace.response_ids[entry.other.t]
    decode = asked.tokenizer.decode
    return TokenOdds(
        offset=asked.node.head + t,
        before=short(" ".join(decode(asked.trace.response_ids[:t])[-30:].split()), 40),
        token=decode([token]),
        odds=odds[t].get(token, 0.0),
        instead=decode([entry.other.token]),
        instead_id=entry.other.token,
        instead_odds=entry.other.odds,
        kept=Chance.of(entry.kept),
        changed=Chance.of(entry.instead),
        confirmed=entry.confirmed,
        named=entry.named,
    )


def _headline(tried: tuple[TokenOdds, ...], measured: str, searched: SearchedTokens, known: int) -> str:
    forks = [entry for entry in tried if entry.named]
    if not forks:
        yet = " yet, and the budget is spent" if searched.spent else ""
        return f"No token stands out{yet}: none of {len(tried)} other tokens that were tried, of {known}, leads elsewhere."
    first = max(forks, key=lambda entry: entry.instead_odds)
    places = len({entry.offset for entry in forks})
    lead = "One token is a fork" if places == 1 else f"{places} tokens are forks"
    stays, goes = f"{first.token!r} ({percent(first.odds, 0)})", f"{first.instead!r} ({percent(first.instead_odds, 0)})"
    return (
        f"{lead}, the likeliest at token {first.offset}: after {stays} {measured} in {first.kept} of the samples, after {goes} "
        f"in {first.changed}."
    )


def _annotations(node: Node, answer: WhyTokens) -> list[Annotation]:
    rows: dict[int, list[dict[str, Any]]] = {}
    for entry in answer.tried:
        value = {
            "instead": entry.instead,
            "odds": entry.instead_odds,
            "kept": [entry.kept.k, entry.kept.n],
            "changed": [entry.changed.k, entry.changed.n],
            "named": entry.named,
        }
        rows.setdefault(entry.offset, []).append(value)
    return [Annotation(node.id, offset, ODDS, MAKER, values) for offset, values in rows.items()]


def _finding(answer: WhyTokens, asked: _AskedTokens) -> Finding:
    name = NOTHING if answer.verdict == "none" else "forks at a token"
    first = max(answer.forks, key=lambda entry: entry.instead_odds, default=None)
    at = 0 if first is None else first.offset
    value = None if first is None else points_less(first.kept, first.changed)
    command = answer.commands.fork(answer.node, f":{at} --n 32") or answer.commands.show
    identity, evidence = identity_of(asked.question, asked.episodes), codec.to_json(answer)
    return Finding(name, MAKER, answer.headline, answer.node, at, command, value, LESS, evidence, identity)
