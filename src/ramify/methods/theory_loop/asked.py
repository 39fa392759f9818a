"""A model in all roles: advocates, arbiter, reviser and critic, each a prompt of its own that is answered with one JSON object.

Every reply is in the run's journal under its place in the loop, so a loop that is done runs again without the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ramify.base.errors import NeedsError, UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.seeds import generator
from ramify.methods.theory_loop.algorithm import CUES, LoopConfig, ScoredTheory
from ramify.methods.theory_loop.bench import Metric
from ramify.methods.theory_loop.domain import Data, Design, TheoryError, random_design, read_design
from ramify.methods.theory_loop.participants import Participants, SimulatedPeople
from ramify.methods.theory_loop.proposer import AdvocateTurn, Experiment, LoopProblem, TheoryPool, TriedTheory, Verdict
from ramify.methods.theory_loop.theories import ALLOWED, SAMPLE, Theory, theory_from
from ramify.model.protocol import Completion, Grammar, Sampling
from ramify.rollout.sampler import FailurePolicy, SamplePosition, Sampler
from ramify.score.judge import reply_to
from ramify.trace.db import Run
from ramify.trace.message import Message

CALL = "reply"
"""What the journal calls a reply."""
DOMAIN = """Subjects choose between two options, A and B. Each option has a rating on each of several cues; a cue's validity \
(0.5 to 1) is how often the option that it rates higher is in truth the better one, and subjects are told it. Ratings are whole \
numbers from 0 to {most}. A subject makes about 96 choices, each pair several times in an order of its own, without feedback."""
CONTRACT = f"""A theory is a Python program:
- predict(parameters, state, history) returns [P(A), P(B)], which sum to 1, and is deterministic. state has option_a_ratings, \
option_b_ratings, validities and rating_max; history has the lists option_a_ratings, option_b_ratings and response (0 = A, 1 = \
B) of this subject's earlier choices.
- policy(probs) returns 0 or 1; the usual one is
{SAMPLE}
- parameters maps each name to the range from which every subject's own value is drawn, uniformly: "[lo, hi]", "{{a, b}}", \
"[(lo, hi)] * n_features", or "validities". Nothing is fitted: to change a range is to change the theory.
It may import {", ".join(ALLOWED)} and keeps no state between calls."""
ROLES = {
    "design": """You are the advocate of theory {own}. Design an experiment that it should win and {rival} should lose. Do not \
repeat an earlier one.
Reply with one JSON object: {{"rationale": text, "validities": [numbers], "trial_a_ratings": [[...], ...], "trial_b_ratings": \
[[...], ...], "rating_max": {most}}}; both lists have one option for each pair, every option one rating for each validity.""",
    "neutral": """Design an experiment in which theories {own} and {rival} predict different choices. Do not repeat an earlier \
one.
Reply with one JSON object: {{"rationale": text, "validities": [numbers], "trial_a_ratings": [[...], ...], "trial_b_ratings": \
[[...], ...], "rating_max": {most}}}.""",
    "metric": """You are the advocate of theory {own}. For the experiment below write a metric in which it and {rival} differ \
most.
metric(data) gets a pandas table with the columns subject_id, option_a_ratings and option_b_ratings (lists; not hashable) and \
response (0 = A, 1 = B), and returns one number; it must also work on the rows of a single subject. Know pairs by their content, \
never by their position. It is accepted where a two-sided Welch test of {people} subjects each has p < {alpha:g} on data \
simulated by both theories.
Reply with one JSON object: {{"rationale": text, "metric": Python source}}.""",
    "verdict": """You are the arbiter between theories {own} (slot 1) and {rival} (slot 2). Read the experiments, what was \
measured, and what each theory predicted (value, and variance between subjects). The aim is theories that hold across tasks. Say \
which slot to replace: by new_theory, or by new_model where the idea is right and its program is not. Prefer new_theory.
Reply with one JSON object: {{"interpretation": text, "verdict": "new_theory" or "new_model", "target": 1 or 2, \
"recommendation": text}}.""",
    "theory": """You write the theory that replaces {target}. The arbiter recommends: {recommendation}
{task}
Reply with one JSON object: {{"description": text, "parameters": {{name: range}}, "predict": Python source, "policy": Python \
source, "rationale": text}}.""",
    "critique": """You are the critic of a candidate that is to replace {target}. The arbiter recommends: {recommendation}
Stay inside the family of mechanisms that it asks for. Say what the candidate still gets wrong, and whether to regenerate or to \
stop here.
Reply with one JSON object: {{"decision": "regenerate" or "continue", "diagnosis": text}}.""",
}


class AskingLoop(Protocol):
    """What a model's roles need of the loop that asks them."""

    run: Run
    pool: TheoryPool
    participants: Participants
    problems: list[LoopProblem]

    def board(self) -> list[ScoredTheory]:
        """The leaderboard now."""
        ...


class AskedProposer:
    """A model by name in every role. Its context is the pool:
    what other calls said is not shown to it, but for this round's failures."""

    tries: tuple[int, int] | None = None

    def __init__(self, spec: str, config: LoopConfig) -> None:
        from ramify.engine.named import find_model

        self.config = config
        self._model, self._template = find_model(spec)
        self._sampler = Sampler(self._model, retries=FailurePolicy({"provider": 2}))
        stops = () if self._template is None else tuple(self._template.stop_tokens)
        self._settings = Sampling(temperature=config.temperature, max_tokens=config.max_tokens, stop_tokens=stops)
        self.name = self._model.identity.name
        texts = [DOMAIN, CONTRACT, *ROLES.values()]
        self.identity = stable_hash("proposer", self._model.identity.weights, canonical_json(self._settings.to_json()), *texts)
        self._holds = "grammar" in self._model.capabilities
        self._loop: AskingLoop | None = None

    def bind(self, loop: AskingLoop) -> None:
        """Keep replies in the journal of ``loop``, and its hidden theory out of the prompts."""
        self._loop = loop

    # -- roles

    async def design(self, pool: TheoryPool, at: AdvocateTurn) -> Design:
        """See :class:`ramify.methods.theory_loop.proposer.Proposer`."""
        if self.config.designer == "blind":
            rng = generator(self.config.seed, "designs", at.round, at.slot, at.number)
            return random_design(rng, CUES, rating_max=self.config.most)
        role = "design" if self.config.designer == "adversarial" else "neutral"
        past = "\n".join(f"- {one.key}: {one.design.rationale or 'no reason given'}" for one in pool.observations)
        parts = [self._both(pool, at.slot), f"Experiments so far:\n{past or 'none'}", failed(at.failures)]
        found = await self._ask(
            role, ("design", at.round, at.slot, at.number, len(at.failures)), self._names(pool, at.slot), parts
        )
        return read_design(found, self.config.ratings, self.config.rating_max)

    async def metric(self, pool: TheoryPool, at: AdvocateTurn, design: Design, own: Data, rival: Data) -> Metric:
        """See :class:`ramify.methods.theory_loop.proposer.Proposer`."""
        shares = [[round(float(p), 3) for p in side.p_b] for side in (own, rival)]
        shown = (
            f"The experiment:\n{canonical_json(design.to_json())}\nShare of B choices for each pair, simulated: own "
            f"{shares[0]}, rival {shares[1]}"
        )
        key = ("metric", at.round, at.slot, at.number, len(at.failures))
        found = await self._ask(
            "metric", key, self._names(pool, at.slot), [self._both(pool, at.slot), shown, failed(at.failures)]
        )
        return Metric(text_of(found, "metric"), str(found.get("rationale", ""))[:4000])

    async def verdict(self, pool: TheoryPool, round: int) -> Verdict:
        """See :class:`ramify.methods.theory_loop.proposer.Proposer`."""
        new = "\n\n".join(observed(one, pool.slots, code=True) for one in pool.observations[-2:])
        old = "\n".join(observed(one, pool.slots) for one in pool.observations[:-2])
        tries = sum(one.where.startswith(f"{round} verdict") for one in (self._loop.problems if self._loop else ()))
        parts = [self._both(pool, 0), f"This round:\n{new}", f"Earlier:\n{old or 'nothing'}"]
        found = await self._ask("verdict", ("verdict", round, tries), self._names(pool, 0), parts)
        kind, target = found.get("verdict"), found.get("target", found.get("target_theory_idx"))
        if kind not in ("new_theory", "new_model") or target not in (1, 2):
            raise TheoryError(
                "reply", f"the verdict is {kind!r:.40} of slot {target!r:.40}; new_theory or new_model of 1 or 2 was asked for"
            )
        return Verdict(
            target - 1, str(kind), str(found.get("interpretation", ""))[:8000], str(found.get("recommendation", ""))[:8000]
        )

    async def theory(
        self, pool: TheoryPool, round: int, iteration: int, verdict: Verdict, best: Theory | None, tried: Sequence[TriedTheory],
        failures: Sequence[str]
    ) -> Theory:  # fmt: skip
        """See :class:`ramify.methods.theory_loop.proposer.Proposer`; of a new model the description stays word for word."""
        old = pool.slots[verdict.slot]
        task = f"Write it from scratch. The theory to replace:\n{pool.theories[old].file()}"
        if best is not None:
            task = f"Make a minimal edit of the best accepted candidate so far:\n{best.file()}"
        if verdict.kind == "new_model":
            task += f"\nKeep the description word for word: {pool.theories[old].description!r}"
        path = "\n".join(
            f"- candidate {i}: loss {one.loss:.4f}, "
            f"{'ACCEPTED' if one.accepted else 'REJECTED'}{f'; critic: {one.critique}' if one.critique else ''}"
            for i, one in enumerate(tried)
        )
        parts = [CONTRACT, task, self._standing(pool), f"Candidates of this revision:\n{path or 'none yet'}"]
        parts += [f"Your last reply could not be used: {why}" for why in failures[-1:]]
        names = {"target": old, "recommendation": verdict.recommendation or "none", "task": ""}
        found = await self._ask("theory", ("theory", round, iteration, len(failures)), names, parts)
        if verdict.kind == "new_model":
            found = {**found, "description": pool.theories[old].description}
        return theory_from(found)

    async def critique(
        self, pool: TheoryPool, round: int, verdict: Verdict, trial: TriedTheory, tried: Sequence[TriedTheory]
    ) -> tuple[bool, str]:
        """See :class:`ramify.methods.theory_loop.proposer.Proposer`."""
        tag = "ACCEPTED" if trial.accepted else "REJECTED"
        parts = [self._standing(pool), f"The candidate ({tag}, loss {trial.loss:.4f}):\n{trial.theory.file()}"]
        names = {"target": pool.slots[verdict.slot], "recommendation": verdict.recommendation or "none"}
        found = await self._ask("critique", ("critique", round, len(tried), trial.theory.hash), names, parts)
        if found.get("decision") not in ("regenerate", "continue"):
            raise TheoryError(
                "reply", f"the critic's decision is {found.get('decision')!r:.40}; regenerate or continue was asked for"
            )
        return found["decision"] == "regenerate", str(found.get("diagnosis", ""))[:4000]

    # -- prompts and replies

    def _names(self, pool: TheoryPool, slot: int) -> dict[str, str | float]:
        return {
            "own": pool.slots[slot],
            "rival": pool.slots[1 - slot],
            "most": self.config.most,
            "people": self.config.people,
            "alpha": self.config.alpha,
        }

    def _both(self, pool: TheoryPool, slot: int) -> str:
        return "\n\n".join(
            f"Theory {label}:\n{pool.theories[label].file()}" for label in (pool.slots[slot], pool.slots[1 - slot])
        )

    def _standing(self, pool: TheoryPool) -> str:
        """All observations, and the three best theories so far with their sources."""
        assert self._loop is not None
        rows = self._loop.board()[:3]
        best = "\n\n".join(f"{row.label}, score {row.score:.3f}:\n{pool.theories[row.label].file()}" for row in rows)
        return (
            "Experiments:\n"
            + "\n".join(observed(one, pool.slots, code=True) for one in pool.observations)
            + f"\n\nBest theories so far:\n{best}"
        )

    async def _ask(self, role: str, key: tuple[Any, ...], names: Mapping[str, Any], parts: Sequence[str]) -> dict[str, Any]:
        """The JSON object that the model replies. Raises TheoryError where there is none,
        UserError where the hidden theory stands in the prompt."""
        head = [DOMAIN.format(most=self.config.most), ROLES[role].format(**names)]
        prompt = "\n\n".join(part for part in (*head, *parts) if part)
        self._no_leak(prompt)

        async def reply() -> tuple[str, tuple[()]]:
            return (await self._reply(Message("user", prompt), ("theory-loop", self.config.seed, *key))).text, ()

        if self._loop is None:
            return object_in((await reply())[0])
        place = "/".join(str(one) for one in (*key, stable_hash(prompt)))
        return object_in(await self._loop.run.once_awaited(CALL, place, str, reply))

    async def _reply(self, message: Message, position: SamplePosition) -> Completion:
        """A reply that is held to JSON where the model does that, else asked for."""
        if self._holds:
            try:
                held = replace(self._settings, grammar=Grammar("json", '{"type": "object"}'))
                return await reply_to(self._sampler, self._template, [message], held, position)
            except NeedsError:  # an endpoint is known not to do it only once it was asked
                self._holds = False
        return await reply_to(self._sampler, self._template, [message], self._settings, position)

    def _no_leak(self, prompt: str) -> None:
        people = None if self._loop is None else self._loop.participants
        if not isinstance(people, SimulatedPeople) or self._loop is None:
            return
        shown = {theory.hash for theory in self._loop.pool.theories.values()}
        if people.theory.hash not in shown and (
            people.theory.code.strip() in prompt or (people.theory.description or "\0") in prompt
        ):
            raise UserError(f"the hidden theory of {people.name} stands in a prompt: whoever proposes must not see it")


def failed(failures: Sequence[LoopProblem]) -> str:
    """This round's failures, for an advocate."""
    rows = [f"- {one.where}: {one.why}" + (f"\n{one.code}" if one.code else "") for one in failures[-12:]]
    return "What failed in this round:\n" + "\n".join(rows) if rows else ""


def observed(one: Experiment, slots: Sequence[str], code: bool = False) -> str:
    """An experiment as arbiter and reviser see it."""
    said = ", ".join(
        f"{label} predicts "
        f"{'nothing (it failed)' if (v := one.predictions.get(label)) is None else f'{v.value:.4f} (variance {v.variance})'}"
        for label in slots
    )
    real = "no value" if one.real is None else f"{one.real.value:.4f} (variance {one.real.variance})"
    text = f"Experiment {one.key}, proposed by {one.proposer}: measured {real}; {said}"
    return text + (f"\ndesign {canonical_json(one.design.to_json())}\n{one.metric.code}" if code else "")


def object_in(reply: str) -> dict[str, Any]:
    """The first JSON object of a reply, whatever stands around it. Raises TheoryError where there is none."""
    start = reply.find("{")
    while start >= 0:
        try:
            found, _ = json.JSONDecoder(parse_constant=_no_constant).raw_decode(reply, start)
            canonical_json(found).encode()
            if isinstance(found, dict):
                return found
        except (ValueError, RecursionError):
            pass
        start = reply.find("{", start + 1) if start < 20_000 else -1
    raise TheoryError("reply", f"the reply holds no JSON object: {reply[:120]!r}")


def _no_constant(name: str) -> None:
    raise ValueError(name)


def text_of(found: Mapping[str, Any], name: str) -> str:
    """A text of a reply. Raises TheoryError."""
    if not isinstance(found.get(name), str):
        raise TheoryError("reply", f"the reply has no text '{name}'")
    return str(found[name])
