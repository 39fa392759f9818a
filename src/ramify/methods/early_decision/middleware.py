"""Ends the thinking of a served model once its answer is settled, at a bound that a calibration certified.

``ramify serve MODEL --middleware stop-thinking:RUN``, where ``ramify early-decision calibrate RUN`` was run for the same model.
Thinking and answer are sampled as in the study; the thinking is looked at as it streams, and what is not needed is not sampled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.base.registry import register
from ramify.base.seeds import derive_key
from ramify.engine.named import find_model
from ramify.methods.early_decision.calibrate import AnswerKeys, confidence_of, probing
from ramify.methods.early_decision.judges import find_jury
from ramify.methods.early_decision.record import CALIBRATE, Study, StudyConfig
from ramify.methods.early_decision.results import StopCalibrated, StopSettings
from ramify.methods.early_decision.stopping import Probe, StopRule
from ramify.methods.early_decision.thinking import Closed, Marks, Thinking
from ramify.model.chat import own_template
from ramify.model.laid import Layout
from ramify.model.middleware import Middleware, shown_by, told_by, unwrapped
from ramify.model.protocol import Completion, Model, Prefix, Sampling, require
from ramify.model.streaming import Detokenizer, Piece, Pieces, rest_of, stream
from ramify.rollout.components import check_trust
from ramify.rollout.sampler import token_ids


@dataclass(frozen=True, eq=False)
class StopPlan:
    """A certified rule with all that it was calibrated with."""

    rule: StopRule
    settings: StopSettings
    config: StudyConfig
    thinking: Thinking
    """Of the served model."""
    answers: AnswerKeys

    @classmethod
    def read(cls, folder: Path, model: Model) -> StopPlan:
        """That of a study, for ``model``. Raises UserError where the study was not calibrated, where its calibration certifies no
        rule, or where it is of other weights, and NeedsError where the model cannot be stopped so."""
        with Study.open(folder) as study:
            check_trust(study.run, False)
            result, config, weights = study.found(CALIBRATE, StopCalibrated), study.config, study.source.weights
        if result is None:
            raise UserError(f"{folder} was not calibrated, so no thinking is ended: `ramify early-decision calibrate {folder}`")
        if result.chosen is None:
            raise UserError(f"the calibration in {folder} certifies no rule, so no thinking is ended: {result.verdict}")
        if weights != model.identity.weights:
            raise UserError(f"{folder} is calibrated for other weights than those of '{model.identity.name}'")
        needs = ("logprobs",) if result.chosen.name == "confidence" else ()
        require(model, ("tokens", "continue", *needs), "ending the thinking")
        tokenizer, template = getattr(model, "tokenizer", None), own_template(model)
        if tokenizer is None:
            raise NeedsError(f"'{model.identity.name}' has no tokenizer, so its thinking cannot be read")
        marks = Marks.of(tokenizer, config.open, config.close, config.primer)
        think = Sampling(config.temperature, config.top_p, config.top_k, config.think_tokens)
        answer = replace(think, stop_tokens=() if template is None else tuple(template.stop_tokens))
        thinking = Thinking(model, tokenizer, marks, think, answer, force=config.force, close_ended=config.close_ended)
        jury = find_jury(config.label, find_model, config.ties == "yes")
        return cls(result.chosen, result.settings, config, thinking, AnswerKeys(result.settings.answer, jury))

    def differs(self, settings: Sampling) -> str:
        """Why a request is sampled otherwise than the calibration was; "" where it is not."""
        for name in ("temperature", "top_p", "top_k"):
            asked, known = getattr(settings, name), getattr(self.config, name)
            if asked != known:
                return f"its {name} is {asked:g}, and the calibration's {known:g}"
        if settings.needs or settings.ban or settings.ban_first or settings.stop_texts or settings.until:
            return "it has a grammar, penalties, bans, a bias or stop texts, which the calibration had not"
        return ""


@register("middleware", "stop-thinking")
class StopThinking(Middleware):
    """``stop-thinking:RUN``: ends the thinking where the rule that was calibrated in RUN says so, and has the model answer.

    A request with other sampling settings than the calibration's is not stopped, and its reply says so. Log-probs are not
    returned: some of the reply's tokens are put in. Raises what :meth:`StopPlan.read` raises.
    """

    name = "stop-thinking"
    argued = "stop-thinking:RUN, where RUN was calibrated (`ramify early-decision calibrate`)"

    def __init__(self, inner: Model, argument: str = "") -> None:
        super().__init__(inner, argument)
        self.plan = StopPlan.read(Path(argument), unwrapped(inner)[1]) if argument else None
        self.rewrites = self.plan is not None

    @property
    def settings(self) -> Any:
        """The rule, how often it looks, and how answers are compared."""
        if self.plan is None:
            return None
        rule, said = self.plan.rule, self.plan.settings
        return [rule.name, rule.setting, said.every, said.probe_tokens, said.answer]

    @property
    def capabilities(self) -> frozenset[str]:
        """Without the log-probs and entropies of what is sampled."""
        return super().capabilities - (frozenset() if self.plan is None else {"logprobs", "entropy"})

    @property
    def defaults(self) -> dict[str, Any]:
        """Sampling settings of requests that name none: those of the calibration."""
        inner = dict(getattr(self.inner, "defaults", {}))
        if self.plan is not None:
            inner |= {name: getattr(self.plan.config, name) for name in ("temperature", "top_p", "top_k")}
        return inner

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        """See :class:`ramify.model.protocol.Model`."""
        if self.plan is None:
            return await super().sample(prefix, n, settings, keys)
        return list(await asyncio.gather(*(self._whole(prefix, settings, key) for key in keys)))

    async def _whole(self, prefix: Prefix, settings: Sampling, key: int) -> Completion:
        async with aclosing(self.stream(prefix, settings, key)) as pieces:
            async for piece in pieces:
                if piece.completion is not None:
                    return piece.completion
        raise AssertionError("a stream ended without its sample")

    async def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        """The thinking as it comes, up to where it ends, and the answer."""
        why = "" if self.plan is None else self.plan.differs(settings)
        if self.plan is None or why:
            async with aclosing(stream(self.inner, prefix, settings, key)) as plain:
                async for piece in plain:
                    if piece.completion is not None and why:
                        piece = replace(piece, completion=_noted(piece.completion, {"stopped": False, "why": why}))
                    yield piece
            return
        layers, model = unwrapped(self.inner)
        seen = await shown_by(layers, prefix)
        async with aclosing(_Reply(self.plan, model, seen[-1], settings, key).pieces()) as pieces:
            async for piece in pieces:
                if piece.completion is not None:
                    piece = replace(piece, completion=await told_by(layers, seen, piece.completion, key))
                yield piece


def _noted(completion: Completion, note: dict[str, Any]) -> Completion:
    return replace(completion, data={**(completion.data or {}), "stop_thinking": note})


class _Reply:
    """One reply: the thinking, watched as it comes, and the answer."""

    def __init__(self, plan: StopPlan, model: Model, given: Prefix, settings: Sampling, key: int) -> None:
        self.plan, self.model, self.given, self.settings, self.key = plan, model, given, settings, key
        self.thinking, self.mark = plan.thinking, len(plan.thinking.marks.mark)
        if given.tokens is None and not isinstance(model, Layout):
            raise NeedsError(
                f"middleware 'stop-thinking' continues token ids, and '{model.identity.name}' renders no chat as such"
            )
        prompt = model.rendered(given) if given.tokens is None and isinstance(model, Layout) else given
        self.prompt: list[int] = _row(prompt)
        self.opened: list[int] = _row(self.thinking.opened(self.prompt))[len(self.prompt) :]
        self.probes: list[Probe] = []
        self.failed = 0
        self.spelled, self.told = Detokenizer(self.thinking.tokenizer), 0

    async def pieces(self) -> Pieces:
        """The reply as it comes; the last piece carries it whole."""
        budget = self.settings.max_tokens - len(self.opened)
        if budget < 1:
            yield self._end(self.opened[: self.settings.max_tokens], "length", False, 0)
            return
        for piece in self._said(self.opened):
            yield piece
        think = self.thinking.left()
        cut_short = budget < think.max_tokens
        think = replace(think, max_tokens=min(budget, think.max_tokens), seeded=self.settings.seeded)
        got: list[int] = []
        looked = said = 0
        stopped, sampled = False, None
        closed: Closed = "forced"
        async with aclosing(stream(self.model, self.thinking.opened(self.prompt), think, self._key("think"))) as pieces:
            async for piece in pieces:
                sampled = piece.completion
                if sampled is None:
                    got += [] if piece.tokens is None else piece.tokens.tolist()
                    sure = len(got) - self.mark  # had the marker begun before, it would be whole
                else:
                    got, closed = self.thinking.split(sampled)
                    sure = len(got) - 1
                while not stopped and looked + self.plan.settings.every <= sure:
                    looked += self.plan.settings.every
                    stopped = await self._stops(got[:looked])
                upto = looked if stopped else max(said, sure if sampled is None else len(got))
                for fresh in self._said(got[said:upto]):
                    yield fresh
                said = upto
                if stopped:
                    break
        if stopped:
            got, closed = got[:looked], "forced"
        elif sampled is None:
            raise AssertionError("a stream ended without its sample")
        elif closed == "never" or (cut_short and sampled.stop == "length"):
            yield self._end([*self.opened, *token_ids(sampled)], sampled.stop, False, len(got))
            return
        after = self.thinking.closed(self.prompt, got, closed)
        tokens = _row(after)[len(self.prompt) :]
        left = self.settings.max_tokens - len(tokens)
        if left < 1:
            yield self._end(tokens[: self.settings.max_tokens], "length", stopped, len(got))
            return
        for piece in self._said(tokens[len(self.opened) + len(got) :]):
            yield piece
        answering = replace(self.thinking.answering, max_tokens=left, seeded=self.settings.seeded)
        async with aclosing(stream(self.model, after, answering, self._key("answer"))) as pieces:
            async for piece in pieces:
                if piece.completion is not None:
                    yield self._end([*tokens, *token_ids(piece.completion)], piece.completion.stop, stopped, len(got))
                elif piece.tokens is not None:
                    for fresh in self._said(piece.tokens.tolist()):
                        yield fresh

    async def _stops(self, thinking: list[int]) -> bool:
        """Whether the thinking ends after these tokens. Where no probe or no answer fits, it does not."""
        plan, closed = self.plan, self.thinking.closed(self.prompt, thinking)
        length, asked = len(_row(closed)), plan.settings.probe_tokens
        context = self.thinking.context
        if length - len(self.prompt) >= self.settings.max_tokens or (context is not None and length + asked > context):
            return False
        if plan.rule.name == "budget":
            self.probes.append(Probe(len(thinking), ""))
        else:
            key = self._key("probe", len(thinking))
            (sampled,) = await self.model.sample(closed, 1, probing(self.thinking, asked), [key])
            last = self.given.messages[-1].text if self.given.messages else self.thinking.text(self.prompt)
            try:
                (answer,) = await plan.answers.of([self.thinking.answer(sampled).text], "served", last)
            except InfrastructureError:  # a jury that failed says nothing, so the thinking goes on
                answer, self.failed = "", self.failed + 1
            self.probes.append(Probe(len(thinking), answer, confidence_of(sampled), len(token_ids(sampled))))
        return plan.rule.stops(self.probes)

    def _said(self, tokens: list[int]) -> Iterator[Piece]:
        """What is new, in whole characters."""
        text, ends = self.spelled.push(tokens)
        if len(ends):
            ids = np.array(self.spelled.tokens[self.told : self.told + len(ends)], np.int32)
            self.told += len(ends)
            yield Piece(text, ids, ends=ends)

    def _end(self, tokens: list[int], stop: str, stopped: bool, thought: int) -> Piece:
        """The last piece."""
        note: dict[str, Any] = {"stopped": stopped, "thinking": thought, "rule": str(self.plan.rule)}
        if self.plan.rule.name != "budget":
            note |= {"probes": len(self.probes), "probe_tokens": sum(probe.spent for probe in self.probes)}
        if self.failed:
            note["failed"] = self.failed
        tokenizer = self.thinking.tokenizer
        assert tokenizer is not None
        whole = Completion(tokenizer.decode(tokens), stop, np.array(tokens, np.int32), ends=tokenizer.ends(tokens))
        if self.given.tokens is None and isinstance(self.model, Layout):
            whole = self.model.reply(self.given, whole)
        return rest_of(_noted(whole, note), self.told, self.spelled.length)

    def _key(self, *what: str | int) -> int:
        return derive_key(self.key, "stop-thinking", *what)


def _row(prefix: Prefix) -> list[int]:
    assert prefix.tokens is not None
    row: list[int] = prefix.tokens.tolist()
    return row
