"""What the method says of one organism: probes, separability, continuations and cuts, overall and on ambiguous prompts.

Answers at a forced close are read exactly from the logits, so closed variance has no sampling noise; thinking on is sampled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.base import codec
from ramify.base.seeds import generator
from ramify.engine.hidden import collect, hop
from ramify.engine.local import LocalModel
from ramify.methods.early_decision.algorithm import (
    Cut,
    TurnSummary,
    continuation_point,
    continuation_variance,
    judge_cuts,
    oscillation_summary,
    thinking_effect,
    transitions,
)
from ramify.methods.early_decision.probe import STATE_A, bar, folds_of, out_of_fold, probe, shuffled_labels
from ramify.methods.early_decision.separability import valley
from ramify.methods.early_decision.thinking import Marks, Thinking, Thought, cut_at
from ramify.model.protocol import Sampling
from ramify.rollout.sampler import SamplePosition, Sampler
from ramify.stats.ranking import auroc
from ramify_experiments.early_decision.organisms import (
    CLOSE,
    COMPLY,
    ID,
    REFUSE,
    STANCES,
    THINK,
    WORDS,
    Ask,
    OrganismRecipe,
    ask,
    tokenizer,
)

SHARES = (0, 20, 40, 60, 80, 100)
"""Per cent of the thinking that is kept."""
POSITIONS = 11
SENSES = {ID[word]: stance for stance, word in zip((-1, 0, 1), STANCES, strict=True)}


@dataclass(frozen=True, slots=True, eq=False)
class SampledTrace:
    """One sampled trace: token ids of the thinking, and whether it refused."""

    request: Ask
    thinking: tuple[int, ...]
    refuse: bool

    def kept(self, share: int) -> tuple[int, ...]:
        """The first ``share`` per cent of the thinking."""
        return self.thinking[: cut_at(len(self.thinking), share / 100)]

    def row(self, thinking: Sequence[int] | None = None) -> tuple[int, ...]:
        """Prompt and ``thinking``, by default all of the trace's."""
        return (*self.request.ids, *(self.thinking if thinking is None else thinking))


class OrganismLab:
    """A trained organism, sampled from and read."""

    def __init__(self, recipe: OrganismRecipe) -> None:
        self.recipe, self.module, words = recipe, recipe.model(), tokenizer()
        marks = Marks((ID[THINK],), (ID[CLOSE],), (ID[CLOSE],))
        think, answer = Sampling(max_tokens=4 * recipe.longest), Sampling(max_tokens=1)
        model = LocalModel(self.module, words, max_sequences=256)
        self.sampler, self.thinking = Sampler(model, recipe.seed), Thinking(model, words, marks, think, answer, force=False)

    def sample(
        self, asks: Sequence[Ask], heads: Sequence[Sequence[int]], n: int, *position: str | int
    ) -> list[list[SampledTrace]]:
        """``n`` traces of each prompt that continue after its ``head``; those without an answer are left out."""

        async def sampled(one: Ask, head: Sequence[int], at: SamplePosition) -> list[Thought | None]:
            begun, left = self.thinking.opened(one.ids, head), self.thinking.left(head)
            return self.thinking.thoughts(await self.sampler.sample(begun, n, left, at, policy=self.thinking), head)

        async def every() -> list[list[Thought | None]]:
            places = enumerate(zip(asks, heads, strict=True))
            return await asyncio.gather(*(sampled(one, head, (*position, i)) for i, (one, head) in places))

        return [
            [
                SampledTrace(one, t.thinking, t.answer.text == REFUSE)
                for t in thoughts
                if t and t.thinking and t.answer and t.answer.text in (COMPLY, REFUSE)
            ]
            for one, thoughts in zip(asks, asyncio.run(every()), strict=True)
        ]

    def traces(self, asks: Sequence[Ask], *position: str | int) -> list[SampledTrace]:
        """One trace a prompt."""
        return [trace for sampled in self.sample(asks, [()] * len(asks), 1, *position) for trace in sampled]

    def refusal(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Probability (N,) that the answer to each row of ids refuses where the thinking is closed after it."""
        last = collect(self.module, [[*row, ID[CLOSE]] for row in rows], [-1])[:, 0, 0]
        logits = last @ self.module.head.detach().numpy()[[ID[COMPLY], ID[REFUSE]]].T
        return np.asarray(1 / (1 + np.exp((logits[:, 0] - logits[:, 1]).astype(np.float64))))


def decoded(lab: OrganismLab, traces: Sequence[SampledTrace], shuffles: int) -> dict[str, Any]:
    """How well states predict the outcome: probes with their nulls, the text and prompt controls, J and probe along the trace."""
    y, groups = np.array([t.refuse for t in traces]), list(range(len(traces)))
    rows = [t.row() for t in traces]
    places = [[10, *(11 + hop(len(t.thinking), POSITIONS))] for t in traces]
    states = collect(lab.module, rows, places)[:, :, 0]  # state A, then along the thinking
    first, prompts = [WORDS[t.thinking[0]] for t in traces], [" ".join(t.request.words) for t in traces]
    split = folds_of(y, groups)
    mixed = shuffled_labels(y, groups, split, None, shuffles, lab.recipe.seed)
    predicted = out_of_fold(np.array(first, object), mixed, split, None)
    null = [auroc(scores, labels) for scores, labels in zip(predicted, mixed, strict=True)]
    h0 = probe(states[:, 1], y, groups, texts={"first": first, "prompt": prompts}, shuffles=shuffles)
    a = probe(states[:, 0], y, groups, recipe=STATE_A, shuffles=0)
    found = valley(states[:, 1:], y)
    return {
        "state A": a.pools[0].auroc,
        "first token": h0.pools[0].auroc,
        "balanced": h0.pools[0].balanced,
        "null": h0.null,
        "text": h0.controls.get("first"),
        "text null": bar(np.array(null, np.float64)),
        "prompt": h0.controls.get("prompt"),
        "along": [auroc(out_of_fold(states[:, 1 + p], y, split), y) for p in range(POSITIONS)],
        "j": list(found.j),
        "floor": list(found.floor),
        "depth": found.depth,
    }


def ambiguous_decoded(
    lab: OrganismLab, traces: Sequence[SampledTrace], ambiguous: Sequence[SampledTrace]
) -> dict[str, float | None]:
    """AUROC at the first token and at 20 % of the thinking, fitted on all prompts, judged where cues nearly or fully balance."""
    both = [*traces, *ambiguous]
    y = np.array([t.refuse for t in both])
    places = [(11 + hop(len(t.thinking), POSITIONS)[[0, 2]]).tolist() for t in both]
    states = collect(lab.module, [t.row() for t in both], places)[:, :, 0]
    pools = [f"|s| = {abs(t.request.score or 0)}" for t in both]
    out: dict[str, float | None] = {}
    for p, where in enumerate(("first token", "20 %")):
        ranked = {one.pool: one.auroc for one in probe(states[:, p], y, list(range(len(y))), pools=pools, shuffles=0).pools}
        out |= {f"{where}, {pool}": ranked.get(pool) for pool in ("|s| = 0", "|s| = 1")}
    return out


def continued(lab: OrganismLab, traces: Sequence[SampledTrace], opened: int, n: int, *position: str | int) -> dict[str, Any]:
    """Variance of the answer by share kept: closed, exact, over all traces; open, ``n`` samples each of the first ``opened``."""
    some, closed, opens = traces[:opened], {}, {}
    for share in SHARES:
        p = lab.refusal([t.row(t.kept(share)) for t in traces])
        variance = continuation_variance(p, np.ones(len(p)))
        closed[str(share)] = {"variance": float(variance.mean()), "error": float(variance.std(ddof=1) / np.sqrt(len(p)))}
        sampled = lab.sample([t.request for t in some], [t.kept(share) for t in some], n, *position, "open", share)
        k, size = [sum(one.refuse for one in each) for each in sampled], [len(each) for each in sampled]
        point = continuation_point(share / 100, "open", k, size, [t.refuse for t in some], list(range(len(some))))
        low, high = point.unbiased_interval or (0.0, 0.0)
        opens[str(share)] = {"variance": point.unbiased, "error": (high - low) / 3.92, "flip": point.flip_rate}
        if share == 0:
            off = [round(1000 * value) for value in p[:opened].tolist()]
            effect = codec.to_json(thinking_effect(k, size, off, [1000] * len(off)))
    return {"closed": closed, "open": opens, "thinking": effect, "prefixes": len(traces), "opened": len(some)}


def stances(kind: str, thinking: Sequence[int]) -> list[int]:
    """Stance of each chunk of two words: its word of stance, or the sign of the sum so far where evidence is weighed."""
    senses = [SENSES.get(token, 0) for token in thinking[: len(thinking) // 2 * 2 : 2]]
    return [int(np.sign(total)) for total in np.cumsum(senses)] if kind == "deliberative" else senses


def oscillations(lab: OrganismLab, traces: Sequence[SampledTrace], k: int = 100) -> TurnSummary:
    """The causal test of every change of stance, with ``k`` binomial samples of the exact answer at both cuts."""
    places = [(i, change) for i, t in enumerate(traces) for change in transitions(stances(lab.recipe.kind, t.thinking))]
    prompts = {str(i): str(i) for i in range(len(traces))}
    if not places:
        return oscillation_summary([], prompts)
    rng, sampled = generator(lab.recipe.seed, "cuts"), []
    for end in ("pre", "post"):
        rows = [traces[i].row(traces[i].thinking[: 2 * getattr(change, end)]) for i, change in places]
        sampled.append(rng.binomial(k, 1 - lab.refusal(rows)).tolist())  # cuts count those that complied
    cuts = [Cut(str(i), "", change.stance, a, k, b, k) for (i, change), a, b in zip(places, *sampled, strict=True)]
    return oscillation_summary(judge_cuts(cuts), prompts)


def ideal(traces: int, seed: int = 0) -> dict[str, float]:
    """Performative share of the cuts of an exact deliberator: of those with a tie before, how many end on a tie.

    Neutral chunks belong to the segment before them, so every change of sign is cut first where the sum is 0, and the answer a
    coin.
    """
    rng, same, cuts = generator(seed, "ideal"), 0, 0
    shape = OrganismRecipe()
    for _ in range(traces):
        sums = np.cumsum([0, *(2 * rng.integers(0, 2, rng.integers(shape.shortest, shape.longest + 1) - 1) - 1)])
        for change in transitions(np.sign(sums).tolist()):
            cuts, same = cuts + 1, same + int(sums[change.post - 1] == 0)
    return {"performative": same / cuts, "cuts": cuts}


def study(
    seed: int, recipe: dict[str, Any], prompts: int, ambiguous: int, opened: int, samples: int, shuffles: int
) -> dict[str, Any]:
    """Everything about one locked or deliberative organism; prompts are not those it was trained on."""
    lab = OrganismLab(OrganismRecipe(**recipe, seed=seed))
    traces = lab.traces([ask(generator(seed, "eval", i)) for i in range(prompts)], "traces")
    even = lab.traces([ask(generator(seed, "even", i), "ambiguous") for i in range(ambiguous)], "even traces")
    return {
        "lost": prompts + ambiguous - len(traces) - len(even),
        "decoded": decoded(lab, traces, shuffles),
        "continued": continued(lab, traces, opened, samples, "main"),
        "oscillations": codec.to_json(oscillations(lab, traces)),
        "even": ambiguous_decoded(lab, traces, even) | continued(lab, even, opened, samples, "even"),
        "near": continued(lab, [t for t in traces if abs(t.request.score or 0) == 1], opened, samples, "near"),
    }


def hybrid_study(seed: int, recipe: dict[str, Any], prompts: int, opened: int, samples: int) -> dict[str, Any]:
    """Continuations of a hybrid on mixed prompts (one in five of bits) and on prompts of either kind, sampled apart."""
    lab = OrganismLab(OrganismRecipe(**recipe, seed=seed))
    out: dict[str, Any] = {}
    for name, bits in (("mixed", 5), ("cues", 0), ("bits", 1)):
        asks = [ask(generator(seed, name, i), "bits" if bits and i % bits == 0 else "clear") for i in range(prompts)]
        out[name] = continued(lab, lab.traces(asks, name), opened, samples, name)
    return out
