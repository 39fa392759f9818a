"""Reproduction 7(a): potentials known exactly, a model of chain arithmetic scanned at every token,
preference training on its cliffs."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ramify.base import codec
from ramify.base.seeds import derive_key, generator, uniforms
from ramify.base.waiting import wait_for
from ramify.engine.local import LocalModel
from ramify.env.builtin import chain
from ramify.env.protocol import Task
from ramify.methods.cliffs.algorithm import H_STAR, KINDS, Cliff, TokenFacts, correct, screen
from ramify.methods.cliffs.forks import Chances, ReplyForks, ReplyPlace, ScoredForks
from ramify.methods.cliffs.passk import pass_at_k
from ramify.methods.cliffs.run import CARRY, AblatedCliff, Examined, ScanConfig, Scanned, TokenPair, ablate, examine, pairs, scan
from ramify.model.protocol import Sampling
from ramify.rollout.potential import ForkEnd, ForksSpent
from ramify.rollout.token_traces import TokenProblem, TokenTrace
from ramify.score.group import normalise
from ramify.stats.drops import Counts, ZTest, standard_error
from ramify.stats.intervals import bootstrap
from ramify.train.batch import Row
from ramify.train.loop import with_reference
from ramify_experiments import recipes
from ramify_experiments.cliffs.martingale import simulate
from ramify_experiments.lab import Checks, ResultCache, Wanted, columns, sized
from ramify_experiments.models import Course, train, training

TOKENS, FORKS, FRESH, DELTA = 150, 64, 128, 0.1
ARMS = ("del", "keep", "random", "critical", "tangent")

# -- item 1: a martingale whose every true drop is known


def process_cell(traces: int, seed: int, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Test every token on 64 forks a position, again on 128 fresh ones; delete and keep the first cliff of each wrong reply.

    ``budgeted`` counts what a budgeted scan, and the faithful one (``again``), find again on other forks;
    ``settings`` are its options.
    """
    made, test, rng = simulate(traces, TOKENS, seed), ZTest(), generator(seed, "cliffs-process", "forks")
    v, right, sure = made["v"], made["right"], made["entropy"] <= H_STAR
    kind = np.where(made["greedy"], np.where(sure, 0, 1), np.where(sure, 3, 2))
    k, fresh = rng.binomial(FORKS, v), rng.binomial(FRESH, v)
    found = test.table(FORKS)[k[:, :-1], k[:, 1:]]
    held = test.table(FRESH)[fresh[:, :-1], fresh[:, 1:]]
    drop, true = (k[:, :-1] - k[:, 1:]) / FORKS, v[:, :-1] - v[:, 1:]
    rows = np.flatnonzero(found.any(axis=1) & ~right)
    at = found[rows].argmax(axis=1)
    known, forks = _known(v, made["pi"], seed)
    budgeted = asyncio.run(scan(known, forks, ScanConfig(**settings or {}))).scanned
    kept = np.zeros_like(found)
    for one in budgeted:
        kept[int(one.trace.id), [cliff.t - 1 for cliff in one.of("confirmed")]] = True
    other = generator(seed, "cliffs-process", "again")
    again = [test.table(n)[c[:, :-1], c[:, 1:]] for n, c in ((n, other.binomial(n, v)) for n in (FORKS, FRESH))]
    return {
        "budgeted": {
            "reference": int((found & held).sum()),
            "hits": int((found & held & kept).sum()),
            "again": int((found & held & again[0] & again[1]).sum()),
            "confirmed": int(kept.sum()),
            "false": int((kept & (true <= DELTA)).sum()),
            "forks": sum(one.forks for one in budgeted),
        },
        "cliffs": found.sum(axis=1).tolist(),
        "right": right.tolist(),
        "del": rng.binomial(FORKS, v[rows, at]).tolist(),
        "keep": rng.binomial(FORKS, v[rows, at + 1]).tolist(),
        "classes": {name: [part[found & (kind == i)].tolist() for part in (drop, true, held)] for i, name in enumerate(KINDS)},
    }


class KnownForks(ScoredForks):
    """Forks of replies whose potentials ``v`` (R, T + 1) and probabilities of tokens ``pi`` (R,
    T) are known; trace ids are the rows."""

    def __init__(self, v: np.ndarray, pi: np.ndarray, seed: int) -> None:
        super().__init__(self._drawn)
        self.v, self.pi, self.seed = v, pi, seed

    async def _drawn(self, trace: TokenTrace, t: ReplyPlace, numbers: range, purpose: str) -> list[ForkEnd]:
        assert isinstance(t, int)
        key = derive_key(self.seed, "known", trace.id, t, purpose)
        right = uniforms(np.full(len(numbers), key), np.array(numbers)) < self.v[int(trace.id), t]
        return list(map(ForkEnd, right.tolist()))

    async def chances(self, trace: TokenTrace) -> Chances:
        """Probabilities of the tokens."""
        return Chances(self.pi[int(trace.id)])


def _known(v: np.ndarray, pi: np.ndarray, seed: int) -> tuple[list[TokenTrace], KnownForks]:
    ids = tuple(range(pi.shape[1]))
    return [TokenTrace(str(i), str(i), (0,), ids, Sampling(), stop="length") for i in range(len(v))], KnownForks(v, pi, seed)


# -- item 2: a model


class Kept(ScoredForks):
    """The forks of ``inner``, each sampled once however often it is counted, sixteen together: scans of one seed share theirs."""

    SIZE = 16

    def __init__(self, inner: ReplyForks) -> None:
        super().__init__(inner.play, inner.truncated)
        self.inner, self.known = inner, dict[tuple[str, ReplyPlace, str, int], Counts]()

    async def chances(self, trace: TokenTrace) -> Chances:
        """See :class:`ScoredForks`."""
        return await self.inner.chances(trace)

    def spent(self) -> ForksSpent:
        """What was spent on those that were sampled."""
        return self.inner.spent()

    async def count(self, trace: TokenTrace, t: ReplyPlace, n: int, purpose: str, start: int = 0) -> Counts:
        """Right ones among ``n`` forks, sampled or known."""
        positions = [(trace.id, t, purpose, at) for at in range(start, start + n, self.SIZE)]
        assert not n % self.SIZE
        missing = [position for position in positions if position not in self.known]
        sampled = await asyncio.gather(*(super(Kept, self).count(trace, t, self.SIZE, purpose, place[-1]) for place in missing))
        self.known.update(zip(missing, sampled, strict=True))
        return sum((self.known[position] for position in positions[1:]), self.known[positions[0]])


HOW = {"sampled": 1.0, "greedy": 0.0}
"""How a model answers -> temperature."""


class ForkLab:
    """The model that ``recipe`` makes for a seed, its environment, and forks of its replies."""

    def __init__(self, recipe: Mapping[str, Any], seed: int) -> None:
        self.recipe, self.seed = recipes.ChainRecipe(**recipe, seed=seed), seed
        self.module, self.environment = self.recipe.model(), self.recipe.environment
        self.tokenizer = recipes.chain_tokenizer(self.recipe.mod)
        # prompts are short: forks of one position share theirs, and searching a store of finished replies costs more than it
        # saves
        self.engine = LocalModel(self.module, self.tokenizer, max_sequences=256, cache_bytes=0)

    def forks(self, seed: int = 0) -> ReplyForks:
        """Forks whose samples are those of ``seed`` within this model's seed."""
        settings = Sampling(max_tokens=12 * self.recipe.hops)
        return ReplyForks(self.engine, self.tokenizer, judge, settings, derive_key(self.seed, "cliffs", seed))

    def problems(self, split: str, n: int) -> list[TokenProblem]:
        """Problems of a split; no model was trained on them."""
        tasks = self.environment.task_set(split, n, self.seed)
        return [TokenProblem(t.id, tuple(self.tokenizer.encode(chain.prompt(t))), dict(t.data)) for t in tasks]

    def accuracy(self, n: int) -> dict[str, Any]:
        """Share of ``n`` problems that the model, as it is now, answers right, sampled and greedy."""
        tasks = list(self.environment.task_set("eval", n, self.seed))
        answers = {how: recipes.chain_answers(self.module, self.tokenizer, tasks, t, self.seed) for how, t in HOW.items()}
        return {how: float(right.mean()) for how, right in answers.items()}


def judge(text: str, trace: TokenTrace) -> bool:
    """Whether the last answer in ``text`` is the chain's."""
    return chain.check(Task(trace.problem_id, trace.data), text).right


def model_cell(recipe: dict[str, Any], seed: int, problems: int) -> dict[str, float]:
    """Train the model of a seed; its sampled and greedy accuracy."""
    lab = ForkLab(recipe, seed)
    return lab.accuracy(problems)


def scan_cell(recipe: dict[str, Any], seed: int, problems: int, start: int, stop: int) -> dict[str, Any]:
    """One reply each to problems ``start`` to ``stop``: the faithful scan with confirmation,
    the budgeted one on forks of its own."""
    return asyncio.run(_scan(ForkLab(recipe, seed), ForkLab(recipe, seed).problems("eval", problems)[start:stop]))


async def _scan(lab: ForkLab, problems: Sequence[TokenProblem]) -> dict[str, Any]:
    forks, test = lab.forks(0), ZTest()
    traces = await forks.sample(problems)
    kept = Kept(forks)
    faithful = await scan(traces, kept, ScanConfig(faithful=True, confirm=FRESH))
    other = Kept(lab.forks(1))
    budgeted = await scan(traces, other, ScanConfig())
    same = await scan(traces, kept, ScanConfig())
    # first cliffs as they were found, before any confirmation, which would choose among them
    unconfirmed = [replace(one, cliffs=tuple(replace(cliff, status="found") for cliff in one.cliffs)) for one in faithful.scanned]
    rows = []
    for one, two, three in zip(faithful.scanned, budgeted.scanned, same.scanned, strict=True):
        pi = (await forks.chances(one.trace)).pi
        assert pi is not None
        rows.append(
            {
                "id": one.trace.id,
                "right": one.trace.correct,
                "tokens": one.trace.length,
                "likely": int((pi >= 1 - DELTA).sum()),
                "screened": len(screen(pi.tolist(), DELTA, CARRY)[0]),
                "k": [None if c is None else c.k for c in one.trace.potentials],
                "again": [await _again(one.trace, cliff.t, other, test) for cliff in one.cliffs],
                **{
                    name: codec.to_json(cliffs)
                    for name, cliffs in (("faithful", one.cliffs), ("budgeted", two.cliffs), ("same", three.cliffs))
                },
            }
        )
    return {
        "traces": rows,
        "ablation": codec.to_json(await ablate(unconfirmed, forks, FORKS)),
        "spent": {"faithful": _cost_estimate(faithful.spent), "budgeted": _cost_estimate(budgeted.spent)},
    }


def _cost_estimate(spent: ForksSpent) -> dict[str, float]:
    """Forks of the scan and of its confirmation, and tokens run through the model for both."""
    by = spent.by_purpose
    return {
        "scan": by["scan"]["forks"],
        "confirm": by.get("confirm", {}).get("forks", 0),
        "forward_tokens": spent.forward_tokens,
    }


async def _again(trace: TokenTrace, t: int, forks: Kept, test: ZTest) -> bool:
    """Whether a faithful scan on these other forks finds and confirms the cliff at token ``t``."""
    return all(
        [
            test.fires(*[await forks.count(trace, at, n, purpose) for at in (t - 1, t)])
            for n, purpose in ((FORKS, "scan"), (FRESH, "confirm"))
        ]
    )


# -- item 3: preference training


def pairs_cell(recipe: dict[str, Any], seed: int, problems: int, start: int, stop: int) -> dict[str, Any]:
    """From the budgeted scan of training problems ``start`` to ``stop``: pairs at confirmed cliffs, pairs at half as many random
    positions, and every potential that was measured, as advantages."""
    lab = ForkLab(recipe, seed)
    return asyncio.run(_pairs(lab, lab.problems("demo", problems)[start:stop]))


async def _pairs(lab: ForkLab, problems: Sequence[TokenProblem]) -> dict[str, Any]:
    forks = lab.forks(2)
    traces = await forks.sample(problems)
    result = await scan(traces, forks, ScanConfig())
    cliffs = [replace(one, cliffs=tuple(one.of("confirmed"))) for one in result.scanned]
    at_cliffs = await examine(cliffs, forks, ZTest(), classes=("uncertain", "sampled_off"))
    tokens = forks.spent().forward_tokens
    at_random = await examine([_at_random(one, lab.seed) for one in cliffs], forks, ZTest())
    dense = [await _advantages(one, forks) for one in result.scanned] + [row for one in at_cliffs for row in _tried(one)]
    found = {"cliffs": pairs(at_cliffs), "random": pairs(at_random)}
    return {name: codec.to_json(rows) for name, rows in found.items()} | {"dense": dense, "tokens": tokens}


async def _advantages(one: Scanned, forks: ReplyForks) -> dict[str, Any]:
    """What each tested token of a reply changed: V_t - V_(t-1), whether it was a cliff or not;
    nothing is said of the tokens left out.

    Of candidates the fresh forks count, which did not choose them.
    """
    trace, pi = one.trace, (await forks.chances(one.trace)).pi
    assert pi is not None
    known = [(t, c) for t, c in enumerate(trace.potentials) if c is not None and c.n]
    counts = {t: (before, now) for (_, before), (t, now) in itertools.pairwise(known) if pi[t - 1] < 1 - DELTA}
    counts |= {cliff.t: cliff.fresh for cliff in one.cliffs if cliff.fresh is not None}
    moved = {t: _shrunk(*pair) for t, pair in counts.items()}
    return {
        "prompt": list(trace.prompt_ids),
        "reply": list(trace.response_ids),
        "logprobs": list(trace.logprobs),
        "moved": sorted(moved.items()),
    }


def _shrunk(before: Counts, now: Counts) -> float:
    """What a token changed, the less the smaller it is against its standard error:
    most tokens change nothing, and their noise would add up."""
    gain = now.rate - before.rate
    se = standard_error(*(Counts(c.k + 1, c.n + 2) for c in (before, now)))
    return gain * max(0.0, 1 - (se / gain) ** 2) if gain else 0.0


def _tried(one: Examined) -> list[dict[str, Any]]:
    """The other tokens tried at a cliff, each by the probability with which the sampler would have sampled it."""
    prompt, token = one.trace.prefix(one.cliff.t - 1).tolist(), one.trace.response_ids[one.cliff.t - 1]
    return [
        {
            "prompt": prompt,
            "reply": [c.token_id],
            "logprobs": [math.log(c.q)],
            "moved": [[1, c.q * _shrunk(one.prev, c.counts)]],
        }
        for c in one.candidates
        if c.token_id != token and c.counts.n and one.prev.n
    ]


def _at_random(one: Scanned, seed: int) -> Scanned:
    """The trace with half as many positions as it has cliffs, sampled at random, instead of the cliffs:
    each gives more pairs than a cliff."""
    picks = generator(seed, "random-positions", one.trace.id).integers(1, one.trace.length + 1, -(-len(one.cliffs) // 2))
    nothing = Counts(0, 0)
    return replace(
        one, cliffs=tuple(Cliff(one.trace.id, int(t), None, int(t) - 1, False, nothing, nothing, TokenFacts()) for t in picks)
    )


def pair_rows(pairs: Sequence[TokenPair]) -> list[Row]:
    """One row a pair for the loss ``preference``: the prompt, then the chosen token, which alone is trained on, with its rival.

    Nothing is appended (an end of turn would enter the loss), put in front or cut.
    """
    rows = []
    for pair in pairs:
        tokens = np.array([*pair.prompt_ids, pair.chosen_id], np.int32)
        last = np.arange(len(tokens)) == len(tokens) - 1
        rows.append(Row(tokens, last, {"rival": np.where(last, pair.rejected_id, 0).astype(np.float32)}))
    return rows


def training_cell(
    recipe: dict[str, Any], seed: int, rows: list[dict[str, Any]], shown: int, lr: float, problems: int
) -> dict[str, Any]:
    """Train on ``rows`` by the preference loss until ``shown`` pairs were shown; accuracy afterwards."""
    lab = ForkLab(recipe, seed)
    made = with_reference(lab.module, pair_rows(codec.from_json(tuple[TokenPair, ...], rows)))
    order = [made[i] for epoch in range(-(-shown // len(made))) for i in generator(seed, "dpo", epoch).permutation(len(made))][
        :shown
    ]
    train(lab.module, lambda step: order[16 * step : 16 * (step + 1)], Course(lr, -(-shown // 16)), seed, {"preference": 1.0})
    return lab.accuracy(problems)


def dense_cell(
    recipe: dict[str, Any], seed: int, rows: list[dict[str, Any]], passes: int, lr: float, problems: int
) -> dict[str, Any]:
    """Clipped policy gradient on the advantages that a scan measured, ``passes`` times over ``rows``,
    64 an update; accuracy afterwards."""
    lab, made = ForkLab(recipe, seed), []
    rows = [row for row in rows if any(value for _, value in row["moved"])]
    size = math.sqrt(np.mean([value**2 for row in rows for _, value in row["moved"]] or [1.0]))
    for row in rows:
        start, tokens = len(row["prompt"]), np.array([*row["prompt"], *row["reply"]], np.int32)
        token_values = {"advantage": np.zeros(len(tokens), np.float32), "logprobs": np.zeros(len(tokens), np.float32)}
        mask = np.zeros(len(tokens), bool)
        token_values["logprobs"][start:] = row["logprobs"]
        for t, value in row["moved"]:
            token_values["advantage"][start + t - 1], mask[start + t - 1] = value / size, True
        made.append(Row(tokens, mask, token_values))
    shares = max(1, len(made) // 64)
    train(lab.module, lambda _: made, Course(lr, 1), seed, {"policy_gradient": 1.0}, epochs=passes, minibatches=shares)
    return lab.accuracy(problems)


def policy_cell(recipe: dict[str, Any], seed: int, tokens: float, lr: float, known: int, problems: int) -> dict[str, Any]:
    """Group-relative policy gradient on replies to ``known`` problems, 32 x 8 replies an update,
    until ``tokens`` were sampled."""
    lab, sampled = ForkLab(recipe, seed), 0
    pool = lab.problems("demo", known)

    def batch(update: int) -> list[Row]:
        nonlocal sampled
        picks = generator(seed, "policy", update).permutation(len(pool))[:32]
        traces = wait_for(lab.forks(1000 + update).sample([pool[i] for i in picks], per_problem=8))
        gains = normalise(np.array([trace.correct for trace in traces], float), np.repeat(np.arange(len(picks)), 8))
        rows = []
        for trace, gain in zip(traces, gains.tolist(), strict=True):
            assert trace.logprobs is not None
            own = np.arange(len(trace.prompt_ids) + trace.length) >= len(trace.prompt_ids)
            token_values = {
                "advantage": np.where(own, gain, 0.0),
                "logprobs": np.concatenate((np.zeros((~own).sum()), trace.logprobs)),
            }
            rows.append(Row(trace.prefix(trace.length), own, {name: x.astype(np.float32) for name, x in token_values.items()}))
        sampled += sum(trace.length for trace in traces)
        return rows

    for updates, _ in training(lab.module, batch, Course(lr, None), seed, {"policy_gradient": 1.0}):  # noqa: B007
        lab.engine.refresh()
        if sampled >= tokens:
            break
    return lab.accuracy(problems) | {"tokens": sampled, "updates": updates}


# -- checks


@dataclass(frozen=True)
class _Size:
    """What one size runs, and the thresholds that depend on it; the defaults are those of ``cpu``."""

    recipe: dict[str, Any] = field(default_factory=dict)
    traces: int = 400
    problems: int = 25
    block: int = 5
    answers: int = 1000
    gap: float = 0.25
    ratio: float = 5.0
    recall: float = 0.95
    share: float = 0.25
    cliffs: int = 60
    """Least number of confirmed cliffs that the recall is measured on."""


_SIZES = {
    "quick": _Size(
        {"mod": 11, "operand": 3, "hops": 3, "rows": 24, "demonstrations": 400, "held_out": 100, "below": 0.3, "lr": 2e-3},
        problems=8,
        block=8,
        answers=100,
        gap=0.2,
        ratio=2.0,
        recall=0.6,
        share=0.45,
        cliffs=1,
    ),
    "cpu": _Size(),
}
TRAINED = {"accuracy": 0.15, "every": 5}
"""Of the model that is trained on: stopped earlier, so that its greedy answers leave room."""
TRAIN_SEEDS, TRAIN_PROBLEMS, TRAIN_BLOCK = 3, 30, 10
#: shown pairs per pair of the largest set; learning rates of the preference, of the policy gradient on measured advantages and
#: on replies
EPOCHS, RATE, DENSE_RATE, POLICY_RATE = 4, 1e-5, 1e-4, 3e-4
KNOWN = {
    "training: gain in greedy accuracy, cliffs": "the model's cliffs are bad luck of sampling, where its greedy answer is right "
    "already, and "
    "there are few pairs: see docs/methods/cliffs.md",
    "training: gain in sampled accuracy, dense advantages": "few replies, each potential measured on a few forks: see "
    "docs/methods/cliffs.md",
    "exact process: budgeted scan: share found of the cliffs found and confirmed": "many of these drops lie near the least "
    "detectable one, "
    "where chance decides; a faithful scan repeated finds fewer: see docs/methods/cliffs.md",
    "budgeted scan: share found of the cliffs found and confirmed, on forks of its own": "a cliff whose true drop is near the "
    "least detectable "
    "one is found by half of all scans, faithful ones too (next row): see docs/methods/cliffs.md",
}
"""Checks that are expected to miss, and why."""


@sized("cliffs", quick=1, cpu=5)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Run section 7(a). ``quick``: without training."""
    plan, checks = _SIZES[size], Checks(seeds, KNOWN)
    process = cells.grid(process_cell, {"process": {"traces": plan.traces}}, seeds, workers=1)["process"]
    base = cells.grid(model_cell, {"model": {"recipe": plan.recipe, "problems": plan.answers}}, seeds)["model"]
    scans = cells.grid(scan_cell, _blocks("scan", plan.recipe, plan.problems, plan.block), seeds).values()
    for one in zip(*scans, strict=True):  # the blocks of a seed
        _decide([trace for cell in one for trace in cell["traces"]])
    done = [cell for block in scans for cell in block]
    traces = [trace for cell in done for trace in cell["traces"]]
    _process(checks, plan, process)
    _rates(checks, plan, base, traces)
    _deletion(checks, plan, [record for cell in done for record in codec.from_json(tuple[AblatedCliff, ...], cell["ablation"])])
    _classes(checks, [cliff for trace in traces for cliff in trace["faithful"]])
    _budget(checks, plan, traces, columns([cell["spent"] for cell in done]))
    if size != "quick":
        checks += _training(plan, cells, seeds[:TRAIN_SEEDS])
    return checks


def _blocks(name: str, recipe: dict[str, Any], problems: int, block: int) -> dict[str, dict[str, Any]]:
    """Arms that take the problems block by block."""
    of = {"recipe": recipe, "problems": problems}
    return {f"{name}, from {start}": {**of, "start": start, "stop": start + block} for start in range(0, problems, block)}


def _process(checks: Checks, plan: _Size, cells: Sequence[Mapping[str, Any]]) -> None:
    got = columns(cells)
    cliffs, right = (np.concatenate(got[name]) for name in ("cliffs", "right"))
    _ratio(checks, "exact process: cliffs per reply, wrong over right", cliffs, right, 2.0)
    passes: tuple[tuple[str, int, Wanted], ...] = (
        ("del", 64, (">=", 0.999)),
        ("keep", 64, (">=", 0.65)),
        ("keep", 64, ("<=", 0.95)),
        ("del", 1, ()),
        ("keep", 1, ()),
    )
    for arm, k, wanted in passes:
        passed = [pass_at_k(FORKS, c, k) for counts in got[arm] for c in counts]
        checks.mean(f"exact process: first cliff of a wrong reply, pass@{k}, {arm}", passed, *wanted)
    limits: tuple[Wanted, ...] = (("<=", 0.05), (), (">=", 0.5), ())
    for kind, wanted in zip(KINDS, limits, strict=True):
        observed, true, held = (np.concatenate(part) for part in zip(*(each[kind] for each in got["classes"]), strict=True))
        checks.mean(f"exact process: {kind}, mean detected drop", observed)
        checks.mean(f"exact process: {kind}, mean true drop", true)
        checks.share(f"exact process: {kind}, share confirmed", int(held.sum()), len(held), *wanted, exact=True)
    # the budgeted scan, on forks of its own, of the cliffs that a faithful one found and confirmed; what it confirms of a drop
    # too small
    total = {name: sum(values) for name, values in columns(got["budgeted"]).items()}
    n, whole, name = total["reference"], FORKS * (TOKENS + 1) * plan.traces * len(cells), "exact process: budgeted scan"
    checks.share(f"{name}: share found of the cliffs found and confirmed", total["hits"], n, ">=", 0.95, exact=True)
    checks.share("exact process: the same share when a faithful scan is repeated", total["again"], n, exact=True)
    small = (total["false"], total["confirmed"])
    checks.share(f"{name}: share of its confirmed cliffs that lose no tenth", *small, "<=", 0.05, exact=True)
    checks.value(f"{name}: share of the faithful scan's forks", total["forks"] / whole, whole)


def _ratio(checks: Checks, name: str, cliffs: np.ndarray, right: np.ndarray, threshold: float) -> None:
    """Mean cliffs of wrong replies over that of right ones, bootstrapped over replies;
    1000 stands for more, where right ones have none."""

    def ratio(rows: np.ndarray) -> np.ndarray:
        at = rows.astype(int)
        wrong, total = ~right[at], cliffs[at]
        with np.errstate(divide="ignore", invalid="ignore"):
            found = ((total * wrong).sum(1) / wrong.sum(1)) / ((total * ~wrong).sum(1) / (~wrong).sum(1))
        return np.asarray(np.nan_to_num(found, nan=1.0, posinf=1000.0))

    everything = np.arange(len(cliffs))
    checks.value(name, ratio(everything[None])[0], len(cliffs), ">=", threshold, bootstrap(everything, ratio))


def _rates(checks: Checks, plan: _Size, base: Sequence[Mapping[str, float]], traces: Sequence[Mapping[str, Any]]) -> None:
    for name in HOW:
        checks.mean(f"model: {name} accuracy", columns(base)[name])
    right = np.array([trace["right"] for trace in traces])
    found, held = (np.array([len(_of(trace, *statuses)) for trace in traces]) for statuses in ((), ("confirmed",)))
    for name, cliffs in (("found", found), ("confirmed", held)):
        for side, rows in (("wrong", ~right), ("right", right)):
            checks.mean(f"model: cliffs {name} per {side} reply", cliffs[rows])
            some, n = int((cliffs[rows] > 0).sum()), int(rows.sum())
            checks.share(f"model: {side} replies with a cliff {name}", some, n, exact=True)
    _ratio(checks, "model: cliffs found per reply, wrong over right", found, right, plan.ratio)
    likely, tokens = (sum(trace[what] for trace in traces) for what in ("likely", "tokens"))
    checks.value("model: tokens of probability 0.9 or more", likely / tokens, tokens)


def _decide(traces: Sequence[dict[str, Any]]) -> None:
    """Confirm or refute the cliffs of one model: over its whole scan where it is budgeted,
    each at the test's own level where faithful."""
    for name in ("budgeted", "same"):
        found = [codec.from_json(tuple[Cliff, ...], trace[name]) for trace in traces]
        decided = iter(correct([cliff for cliffs in found for cliff in cliffs], ScanConfig().fdr))
        for trace in traces:
            trace[name] = [next(decided) for _ in trace[name]]
    for trace in traces:
        trace["faithful"] = [
            replace(cliff, status="confirmed" if cliff.p is not None and cliff.p < ZTest().alpha else "refuted")
            for cliff in codec.from_json(tuple[Cliff, ...], trace["faithful"])
        ]


def _of(trace: Mapping[str, Any], *statuses: str, scan: str = "faithful") -> list[Cliff]:
    return [cliff for cliff in trace[scan] if not statuses or cliff.status in statuses]


def _deletion(checks: Checks, plan: _Size, records: Sequence[AblatedCliff]) -> None:
    """First cliffs of wrong replies as they were found, fresh forks; an arm without a position to cut at scores 0."""
    at = {}
    for arm, k in itertools.product(ARMS, (1, 8, 64)):
        at[arm, k] = np.array([_pass(record.counts[arm], k) for record in records])
        checks.mean(f"model: first cliff of a wrong reply, pass@{k}, {arm}", at[arm, k])
    gap, n = at["del", 1] - at["keep", 1], len(records)
    interval = bootstrap(gap)
    checks.value("model: pass@1, del - keep", gap.mean(), n, ">=", plan.gap, interval)
    checks.value("model: pass@1, del - keep, lower end of the interval", interval[0], n, ">", 0.0)
    checks.paired("model: pass@1, del - random", at["del", 1], at["random", 1], ">", 0.0)


def _pass(counts: Counts | None, k: int) -> float:
    """pass@k of an arm; of fewer graded forks than k, that of them all."""
    return pass_at_k(counts.n, counts.k, min(k, counts.n)) if counts and counts.n else 0.0


def _classes(checks: Checks, cliffs: Sequence[Cliff]) -> None:
    for kind in KINDS:
        own = [cliff for cliff in cliffs if cliff.facts.kind == kind]
        checks.value(f"model: {kind} cliffs found", len(own), len(own))
        if own:
            checks.mean(f"model: {kind}, mean detected drop", [cliff.drop for cliff in own])
            checks.mean(f"model: {kind}, mean fresh drop", [cliff.fresh_drop for cliff in own if cliff.fresh_drop is not None])
        held, wanted = sum(cliff.status == "confirmed" for cliff in own), ("<=", 0.1) if kind == "deterministic" else ()
        checks.share(f"model: {kind}, share confirmed", held, len(own), *wanted, exact=True)
    confirmed = [cliff for cliff in cliffs if cliff.status == "confirmed"]
    checks.value("model: confirmed cliffs flagged suspect", sum(cliff.suspect for cliff in confirmed), len(confirmed))
    most = max((cliff.facts.pi or 0.0 for cliff in confirmed), default=0.0)
    checks.value("model: largest probability of a confirmed cliff token", most, len(confirmed))


def _budget(
    checks: Checks, plan: _Size, traces: Sequence[Mapping[str, Any]], spent: Mapping[str, Sequence[Mapping[str, int]]]
) -> None:
    confirmed = {(trace["id"], c.t): c.facts.pi or 0.0 for trace in traces for c in _of(trace, "confirmed")}
    found, kept = (
        {(trace["id"], c.t) for trace in traces for c in _of(trace, "confirmed", scan=name)} for name in ("budgeted", "same")
    )
    n, hits, same = len(confirmed), len(found & confirmed.keys()), len(kept & confirmed.keys())
    pairs = [(c, a) for trace in traces for c, a in zip(trace["faithful"], trace["again"], strict=True)]
    again = sum(a for c, a in pairs if c.status == "confirmed")
    saved = 1 - sum(trace["screened"] for trace in traces) / sum(trace["tokens"] + 1 for trace in traces)
    checks.value("screen: share of forks saved", saved, len(traces), ">=", 0.6)
    checks.value("screen: confirmed cliffs lost", sum(pi >= 1 - DELTA for pi in confirmed.values()), n, "<=", 0.0)
    name = "budgeted scan: share found of the cliffs found and confirmed"
    checks.share(f"{name}, on the same forks", same, n, ">=", plan.recall, exact=True)
    checks.share(f"{name}, on forks of its own", hits, n, ">=", plan.recall, exact=True)
    checks.share("faithful scan: the same share when it is repeated on those other forks", again, n, exact=True)
    checks.value("budgeted scan: cliffs that these shares are of", n, n, ">=", plan.cliffs)
    whole, part = ({key: sum(values) for key, values in columns(spent[name]).items()} for name in ("faithful", "budgeted"))
    share, tokens = (part["scan"] + part["confirm"]) / whole["scan"], part["forward_tokens"] / whole["forward_tokens"]
    name = "budgeted scan: forks with confirmation, share of the faithful scan's without"
    checks.value(name, share, int(whole["scan"]), "<=", plan.share)
    name = "budgeted scan: forward tokens, share of the faithful scan's, both with confirmation"
    checks.value(name, tokens, int(whole["forward_tokens"]))
    checks.value(
        "budgeted scan: confirmed cliffs that the faithful scan did not confirm", len(found - confirmed.keys()), len(found)
    )


def _training(plan: _Size, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """What the same scans give to training: pairs at cliffs and at random positions,
    dense advantages, and plain policy gradient."""
    recipe, checks = plan.recipe | TRAINED, Checks(seeds, KNOWN)
    common = {"recipe": recipe, "problems": plan.answers}
    base = cells.grid(model_cell, {"model for training": common}, seeds)["model for training"]
    blocks = cells.grid(pairs_cell, _blocks("pairs", recipe, TRAIN_PROBLEMS, TRAIN_BLOCK), seeds).values()
    jobs: dict[str, dict[str, Any]] = {}
    dense, policy = dict[str, dict[str, Any]](), dict[str, dict[str, Any]]()
    sets: dict[str, list[int]] = {"cliffs": [], "random": []}
    for seed, own in zip(seeds, zip(*blocks, strict=True), strict=True):
        rows = {name: [row for block in own for row in block[name]] for name in ("cliffs", "random", "dense")}
        of = {**common, "seed": seed}
        for arm in sets:
            sets[arm].append(len(rows[arm]))
            if rows[arm]:
                jobs[f"{arm}, seed {seed}"] = {**of, "rows": rows[arm], "shown": EPOCHS * len(rows["cliffs"]), "lr": RATE}
        dense[f"dense advantages, seed {seed}"] = {**of, "rows": rows["dense"], "passes": EPOCHS, "lr": DENSE_RATE}
        tokens = sum(block["tokens"] for block in own) / 10
        policy[f"policy gradient, seed {seed}"] = {**of, "tokens": tokens, "lr": POLICY_RATE, "known": 800}
    done = cells.map(training_cell, jobs) | cells.map(dense_cell, dense) | cells.map(policy_cell, policy)
    for arm, n in sets.items():
        checks.value(f"training: pairs, {arm}", sum(n), len(n))
    checks.worst("training: greedy accuracy before, the highest", columns(base)["greedy"], "<=", 0.8)
    for arm in ("cliffs", "random", "dense advantages", "policy gradient"):
        for how in ("greedy", "sampled"):
            pairs = [(done[key], one) for seed, one in zip(seeds, base, strict=True) if (key := f"{arm}, seed {seed}") in done]
            gains = [after[how] - before[how] for after, before in pairs]
            name = f"training: gain in {how} accuracy, {arm}{' at a tenth of the tokens' if 'policy' in arm else ''}"
            if gains:  # else no seed gave such pairs
                checks.mean(name, gains, *((">=", 0.02) if name in KNOWN else ()))
    return checks
