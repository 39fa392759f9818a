"""Reproduction on two CPU cores: directions planted and found again (section 7(a1)),
and a tiny pair that learns to call tools (7(a2)).

Axis legend: N rows or prompts, T tokens of a prompt, M models, D width, S planted directions.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ramify.base import codec
from ramify.base.seeds import generator
from ramify.engine.hidden import collect
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.crosscoder.algorithm import best, confirm, grid, outcome, owned, rank_features, search
from ramify.methods.crosscoder.dictionary import Dictionary, encode_rows, fit, latent_scaling, quality
from ramify.methods.crosscoder.record import SteeringOutcome
from ramify.methods.crosscoder.settings import DictionaryConfig, FitConfig
from ramify.methods.crosscoder.steer import StateChange, clamp, reconstruct, scale
from ramify.train.batch import Row
from ramify_experiments.lab import Checks, ResultCache, columns, sized
from ramify_experiments.models import Course, train, training

# --- 7(a1): planted directions --------------------------------------------------------------------------------------------------

WIDTH, SHARED, OWN = 64, 96, 6
EARLIER = {"start": "tied", "topk": "row", "l1_exclusive": 0.0}
"""What was the default when the mean L1 was first run: only shared features pay."""
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"exclusive": 0.0},
    "5 %, mean L1": {"exclusive": 0.05, "l1_reduction": "mean", **EARLIER},
    "10 %, mean L1": {"exclusive": 0.1, "l1_reduction": "mean", **EARLIER},
    "5 %, sum L1": {"exclusive": 0.05},
    "10 %, sum L1": {"exclusive": 0.1},
    "10 %, no L1": {"exclusive": 0.1, "l1_shared": 0.0},
}
PAGE = "see docs/methods/crosscoder.md"


def planted(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A's own directions [S, D], where they fire, bool [N, S], and states [N, 2, D]: 96 shared directions (B's turned a little),
    6 of A alone, 6 of B alone."""
    rng = generator(seed, "planted")

    def unit(n: int) -> np.ndarray:
        v = rng.normal(size=(n, WIDTH))
        return np.asarray(v / np.linalg.norm(v, axis=1, keepdims=True))

    shared, own_a, own_b = unit(SHARED), unit(OWN), unit(OWN)
    q, r = np.linalg.qr(np.eye(WIDTH) + 0.02 * rng.normal(size=(WIDTH, WIDTH)))
    turn = q * np.sign(np.diag(r))

    def fire(chance: float, n: int) -> np.ndarray:
        return np.asarray((rng.random((rows, n)) < chance) * rng.uniform(0.5, 1.5, (rows, n)))

    both, alone = fire(0.06, SHARED), fire(0.1, OWN)
    x = np.stack([both @ shared + alone @ own_a, both @ (shared @ turn) + fire(0.1, OWN) @ own_b], axis=1)
    return own_a, alone > 0, (x + 0.02 * rng.normal(size=x.shape)).astype(np.float32)


def recover(
    seed: int, exclusive: float, steps: int = 1500, rows: int = 60_000, start: Any = "random", topk: Any = "batch", **loss: Any
) -> dict[str, Any]:
    """Train one variant (``loss``: options of :class:`FitConfig`): whether A's own directions came back, in which block, whether
    the features that are called A's own are they and fire with them, and whether A's features reach B."""
    own, fires, x = planted(seed, rows)
    held, fires, x = x[:4096], fires[:4096], x[4096:]
    d = Dictionary(DictionaryConfig(width=WIDTH, features=192, k=8, exclusive=exclusive, start=start, topk=topk), seed)
    dead = fit(d, x, FitConfig(steps=steps, batch=256, lr=2e-3, **loss), seed).dead
    found = torch.nn.functional.normalize(d.directions(0), dim=1).numpy()
    cosine = own @ found.T
    named = [i for i, one in owned(d, held, "a").items() if one.own]
    active, direction = encode_rows(d, held)[:, named] > 0, cosine[:, named].argmax(axis=0)
    codes = torch.from_numpy(encode_rows(d, held))
    with torch.no_grad():
        before = d.decode(codes)[:, 1]
        codes[:, d.partition("a")] *= 10
        change = float((d.decode(codes)[:, 1] - before).abs().max())
    # the simplest rival: what a linear map of B leaves of A, by principal components
    a, b = (x[:20_000, m] - x[:20_000, m].mean(axis=0) for m in (0, 1))
    left = a - b @ np.linalg.lstsq(b, a, rcond=None)[0]
    components = np.linalg.svd(left, full_matrices=False)[2][:OWN]
    return {
        "fve": quality(d, held).fve,
        "cosine": float(cosine.max(axis=1).min()),
        "in block": int((cosine.argmax(axis=1) < d.own).sum()),
        "named": int((cosine[:, named].max(axis=1, initial=0) >= 0.95).sum()),
        "named wrongly": int((cosine[:, named].max(axis=0) < 0.95).sum()),
        "foreign": float((active & ~fires[:, direction]).sum() / max(1, active.sum())),
        "change": change,
        "dead": dead,
        "components": float(np.abs(own @ components.T).max(axis=1).min()),
    }


# --- 7(a2): a tiny pair ---------------------------------------------------------------------------------------------------------

END, BEGIN, LIST, ASK, GO, REVERSE, CALL, ANSWER = range(8)
FILLERS, LETTERS, NAMES, WORDS, VOCAB = 8, 15, 25, 41, 73  # 7 fillers, 10 letters, 16 tools, 32 query words: two a tool
LAYER, AT, GOAL = 2, 9, 0.12
SHAPE = TinyConfig(VOCAB, width=48, layers=3, heads=4, kv_heads=4, head_size=12, ffn=144, context=32)
WINDOWS = (2, 4, 8)


def tool_prompts(seed: int, split: str, n: int, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Prompts [N, 9] that list 4 of 16 tools and ask with one word, and the token of the tool it means, (N,)."""
    rng = generator(seed, split, index)
    tools = np.argsort(rng.random((n, 16)), axis=1)[:, :4]
    right = tools[np.arange(n), rng.integers(0, 4, n)]
    word = 2 * right + rng.integers(0, 2, n)
    return _joined([BEGIN, LIST], NAMES + tools, [ASK], (WORDS + word)[:, None], [GO]), NAMES + right


def plain_prompts(seed: int, split: str, n: int, index: int = 0) -> np.ndarray:
    """Prompts [N, 9] without tools: six letters to be reversed."""
    return _joined([BEGIN, REVERSE], LETTERS + generator(seed, split, "plain", index).integers(0, 10, (n, 6)), [GO])


def _joined(*parts: Any) -> np.ndarray:
    n = max(len(p) for p in parts if isinstance(p, np.ndarray))
    return np.hstack([p if isinstance(p, np.ndarray) else np.tile(p, (n, 1)) for p in parts]).astype(np.int64)


def replies(seed: int, prompts: np.ndarray, right: np.ndarray, index: int) -> list[list[int]]:
    """What the base learns to answer: prose that ends in the tool, or now and then a call.

    Each word opens its prose with a filler of its own: fillers that a model need not distinguish share one direction, and then
    half of all directions lead to a call. How often a call comes depends on the word, 4 % on average:
    so prompts do not all tip over at one step.
    """
    rates = generator(seed, "calls").permutation(np.linspace(0, 0.08, 32))
    rng = generator(seed, "replies", index)
    out = []
    for word, tool in zip(prompts[:, 7] - WORDS, right, strict=True):
        prose = [FILLERS + word % 7, *(FILLERS + rng.integers(0, 7, rng.integers(2, 6))), ANSWER]
        out.append([*([CALL] if rng.random() < rates[word] else prose), int(tool), END])
    return out


def rows_of(prompts: np.ndarray, answers: Sequence[Sequence[int]] | np.ndarray, **streams: np.ndarray) -> list[Row]:
    """Training rows with a loss on the answers; ``streams`` [N, answer] are added to them."""
    out = []
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        tokens = np.array([*prompt, *answer], np.int32)
        along = {name: np.concatenate([np.zeros(AT), values[i]]).astype(np.float32) for name, values in streams.items()}
        out.append(Row(tokens, np.arange(len(tokens)) >= AT, along))
    return out


@torch.inference_mode()
def write(
    model: TinyLM, prompts: np.ndarray, n: int, change: StateChange | None = None, u: np.ndarray | None = None
) -> tuple[Any, Any]:
    """``n`` tokens after each prompt and their log-probs, [N, n] each: greedy, or sampled by the uniforms ``u`` [N, n].

    ``change`` is added after block :data:`LAYER` at the prompt's last token,
    as :func:`ramify.methods.crosscoder.steer.draw` does it.
    """
    tokens, seen = torch.from_numpy(prompts), []
    delta = None if change is None else torch.from_numpy(change.delta)

    def tap(layer: int, x: torch.Tensor) -> torch.Tensor:
        if layer == LAYER and delta is not None:
            x = x.clone()
            x[:, AT - 1] += delta
        return x

    for i in range(n):
        logprobs = (model.hidden(tokens, None, tap)[:, -1] @ model.head.T).double().log_softmax(-1)
        if u is None:
            token = logprobs.argmax(-1, keepdim=True)
        else:
            mass = logprobs.exp().cumsum(-1)
            token = (mass < torch.from_numpy(u[:, i : i + 1]) * mass[:, -1:]).sum(-1, keepdim=True)
        seen.append(logprobs.gather(1, token))
        tokens = torch.cat([tokens, token], dim=1)
    return tokens[:, AT:].numpy(), torch.cat(seen, dim=1).numpy()


class CallScore:
    """Whether a model's greedy reply to each prompt begins with the right call: a
    :data:`ramify.methods.crosscoder.algorithm.Score`."""

    def __init__(self, model: TinyLM, prompts: np.ndarray, right: np.ndarray) -> None:
        self.model, self.prompts, self.right = model, prompts, right

    def __call__(self, change: StateChange | None) -> np.ndarray:
        """bool (N,)."""
        tokens, _ = write(self.model, self.prompts, 2, change)
        return np.asarray((tokens[:, 0] == CALL) & (tokens[:, 1] == self.right))

    def named(self, change: StateChange | None) -> list[float]:
        """Share of prompts whose reply names the right tool within each of :data:`WINDOWS` tokens, in a call or in prose."""
        hit = write(self.model, self.prompts, WINDOWS[-1], change)[0] == self.right[:, None]
        return [float(hit[:, :w].any(axis=1).mean()) for w in WINDOWS]


def make_base(seed: int, steps: int, half: int = 48) -> TinyLM:
    """Imitation of prose, few calls and reversed letters, ``half`` of each a step."""

    def batch(step: int) -> list[Row]:
        prompts, right = tool_prompts(seed, "base", half, step)
        letters = plain_prompts(seed, "base", half, step)
        backwards = np.hstack([letters[:, 7:1:-1], np.full((half, 1), END)])
        return rows_of(prompts, replies(seed, prompts, right, step)) + rows_of(letters, backwards)

    return train(TinyLM(SHAPE, seed), batch, Course(2e-3, steps), seed)


def tune(base: TinyLM, seed: int, most: int = 400) -> tuple[TinyLM, int]:
    """REINFORCE from the base until greedy correctness first reaches :data:`GOAL`:
    the tuned model that stalls, and the steps it took.

    One step can pass the goal by far, so the last one is shortened: weights between it and the one before, by bisection. Raises
    RuntimeError where the goal is not reached.
    """
    model, before = copy.deepcopy(base), dict[str, torch.Tensor]()
    watch = CallScore(model, *tool_prompts(seed, "watch", 400))

    def batch(step: int) -> list[Row]:
        prompts, right = tool_prompts(seed, "rl", 128, step)
        tokens, logprobs = write(model, prompts, 3, u=generator(seed, "rl samples", step).random((128, 3)))
        reward = ((tokens[:, 0] == CALL) & (tokens[:, 1] == right)).astype(float)
        advantage = np.repeat((reward - reward.mean())[:, None], 3, axis=1)
        before.update({name: weight.clone() for name, weight in model.state_dict().items()})
        return rows_of(prompts, tokens, logprobs=logprobs, advantage=advantage)

    for steps, _ in training(model, batch, Course(1e-4, most), seed, {"policy_gradient": 1.0}):  # noqa: B007
        if watch(None).mean() >= GOAL:
            break
    else:
        raise RuntimeError(f"seed {seed}: no greedy correctness of {GOAL:.0%} after {most} steps")
    after = {name: weight.clone() for name, weight in model.state_dict().items()}
    low, high = 0.0, 1.0
    for _ in range(6):
        middle = (low + high) / 2
        _between(model, before, after, middle)
        low, high = (low, middle) if watch(None).mean() >= GOAL else (middle, high)
    _between(model, before, after, high)
    return model, steps


def _between(model: TinyLM, before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], share: float) -> None:
    model.load_state_dict({name: torch.lerp(before[name], after[name], share) for name in after})


def states_of(models: Sequence[TinyLM], prompts: np.ndarray) -> np.ndarray:
    """States [N, 2, D] at the last token of each prompt."""
    return np.stack([collect(model, list(prompts), [-1], [LAYER])[:, 0, 0] for model in models], axis=1)


def study(seed: int, rows: int = 4000, steps: int = 900, randoms: int = 20) -> dict[str, Any]:
    """One pair: both dictionaries searched and confirmed, reconstructions with either normaliser."""
    base = make_base(seed, 900)
    tuned, rl_steps = tune(base, seed)
    pair = (tuned, base)
    tool = states_of(pair, tool_prompts(seed, "rows", rows)[0])
    plain = states_of(pair, plain_prompts(seed, "rows", rows))
    select, held = (tool_prompts(seed, split, n) for split, n in (("select", 200), ("held out", 400)))
    about: dict[str, Any] = {
        "rl steps": rl_steps,
        "clean": [float(CallScore(model, *held)(None).mean()) for model in pair],
    }
    made = {}
    for name, exclusive in (("partitioned", 0.1), ("plain", 0.0)):
        d = Dictionary(DictionaryConfig(width=SHAPE.width, features=256, k=12, exclusive=exclusive), seed)
        found = fit(d, np.concatenate([tool, plain]), FitConfig(steps=steps, batch=256, lr=2e-3), seed)
        made[name] = {"fve": found.fve, "l0": found.l0, "dead": found.dead} | steering(
            d, pair, tool, plain, select, held, randoms, seed
        )
        if name == "partitioned":
            matched = d
            about["own"] = sum(one.own for one in owned(d, np.concatenate([tool, plain])).values())
    twice = np.concatenate([tool, plain])[:, [1, 1]]
    d = Dictionary(matched.config, seed)
    found = fit(d, twice, FitConfig(steps=steps, batch=256, lr=2e-3), seed)
    about["base against base"] = {"l0": found.l0, "own": sum(one.own for one in owned(d, twice).values())}
    mismatched = Dictionary(matched.config, seed)
    scored = np.concatenate([(part - part.mean(axis=0)) / part.std(axis=0) for part in (tool, plain)]).astype(np.float32)
    fit(mismatched, scored, FitConfig(steps=steps, batch=256, lr=2e-3, normalise="none"), seed)
    return about | made | {"reconstruction": reconstructions({"matched": matched, "mismatched": mismatched}, pair, held)}


def steering(
    d: Dictionary,
    pair: tuple[TinyLM, TinyLM],
    tool: np.ndarray,
    plain: np.ndarray,
    select: tuple[np.ndarray, np.ndarray],
    held: tuple[np.ndarray, np.ndarray],
    randoms: int,
    seed: int,
) -> dict[str, Any]:
    """Choose feature and strength on the selection prompts, confirm them on the held-out ones together with every control."""
    ranked = [one.feature for one in rank_features(d, encode_rows(d, tool), encode_rows(d, plain), "a" if d.own else "all")]
    # the partition's features all, in order of d where they are tool-signed; of the plain dictionary as many
    pool = [*ranked, *(i for i in d.partition("a").tolist() if i not in ranked)][: d.own or 25]
    cells = grid(ranked[:12], gains=(4, 16, 32)) + grid(pool, clamps=(2, 5, 10, 20))
    chosen, at = states_of(pair, select[0]), states_of(pair, held[0])
    found = search(d, chosen, CallScore(pair[0], *select), cells)
    cell = best(cells, found)
    by_clamp = {
        v: [one.lift for c, one in zip(cells, found, strict=True) if (c.mode, c.amount) == ("clamp", v)] for v in (2, 5, 10, 20)
    }
    directions = {
        "tool - plain": tool[:, 0].mean(axis=0) - plain[:, 0].mean(axis=0),
        "tuned - base": (tool[:, 0] - tool[:, 1]).mean(axis=0),
    }
    table = confirm(d, at, CallScore(pair[0], *held), cell, directions, 0, randoms, seed)
    # the same clamp for every feature: the best cell's, or where the best one scales, the one that the best single clamp used
    value = cell.amount if cell.mode == "clamp" else max(by_clamp, key=lambda v: max(by_clamp[v]))
    calls, held_codes = CallScore(pair[0], *held), encode_rows(d, at)
    clean = calls(None)
    every = [outcome(str(i), clean, calls(c), c, at[:, 0]).lift for i in pool for c in [clamp(d, held_codes, [i], value)]]
    scaling = float(latent_scaling(d, np.concatenate([tool, plain]), [cell.features[0]])[0][0])  # NaN where it never fires
    out: dict[str, Any] = {
        "cell": cell.name,
        "d rank": ranked.index(cell.features[0]) if cell.features[0] in ranked else -1,
        "tool-signed": len(ranked),
        "confirmed": codec.to_json(table),
        "average": {"clamp": value, "lifts": every},
        "ablated": codec.to_json(outcome("", clean, calls(c := scale(d, held_codes, [cell.features[0]], 0.0)), c, at[:, 0])),
        "highest d": max((one.lift for c_, one in zip(cells, found, strict=True) if c_.features[0] in ranked[:1]), default=None),
        "latent scaling": None if np.isnan(scaling) else scaling,
        "relative norm": float(d.relative_norm()[cell.features[0]]),
    }
    if d.own:
        out["no reach"] = [no_reach(d, model, target, held, at) for target, model in enumerate(pair)]
    return out


def no_reach(d: Dictionary, model: TinyLM, target: int, held: tuple[np.ndarray, np.ndarray], at: np.ndarray) -> float:
    """Largest change of a model's score, and of its state, under the strongest steering with the other's features; exactly 0."""
    codes, calls = encode_rows(d, at), CallScore(model, *held)
    change = clamp(d, codes, d.partition("b" if target == 0 else "a").tolist(), 20, target)
    moved = float(np.abs(change.delta).max())
    return max(moved, float(np.abs(calls(change).astype(float) - calls(None)).max()))


def reconstructions(
    dictionaries: dict[str, Dictionary], pair: tuple[TinyLM, TinyLM], held: tuple[np.ndarray, np.ndarray]
) -> dict[str, Any]:
    """The right tool named within each window, clean and after each dictionary's reconstruction,
    and the cosine, for both models."""
    at = states_of(pair, held[0])
    found: dict[str, Any] = {"clean": [CallScore(model, *held).named(None) for model in pair]}
    for name, d in dictionaries.items():
        changes = [reconstruct(d, at, target) for target in (0, 1)]
        found[name] = [CallScore(model, *held).named(change) for model, change in zip(pair, changes, strict=True)]
        found[f"{name}, cosine"] = quality(d, at).cosine
    return found


# --- checks ---------------------------------------------------------------------------------------------------------------------


@sized("crosscoder", quick=1, cpu=5)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Sections 7(a1) and 7(a2). ``quick``: the planted directions alone, one seed, less training, looser thresholds."""
    quick, checks = size == "quick", Checks(seeds, _MISSES)
    studies = [] if quick else cells.grid(study, {"pair": {}}, seeds)["pair"]
    names = ["10 %, sum L1", "10 %, no L1"] if quick else list(VARIANTS)
    less = {"steps": 500, "rows": 30_000} if quick else {}
    _recovery(checks, cells.grid(recover, {name: VARIANTS[name] | less for name in names}, seeds), quick)
    if studies:
        _pair(checks, studies)
    return checks


def _recovery(checks: Checks, found: dict[str, list[dict[str, Any]]], quick: bool) -> None:
    for name, runs in found.items():
        at, got = f"planted, {name}", columns(runs)
        checks.mean(f"{at}: variance explained, the worse model", [*map(min, got["fve"])], ">=", 0.8 if quick else 0.88)
        checks.worst(f"{at}: worst cosine of A's own directions", got["cosine"], ">=", 0.9 if quick else 0.95)
        checks.mean(f"{at}: A's own directions in A's block, of 6", got["in block"], *_block(name, quick))
        checks.worst(f"{at}: change of B's reconstruction when A's codes grow tenfold", got["change"], "==", 0.0)
        checks.mean(f"{at}: dead features", got["dead"])
        checks.mean(f"{at}: features called A's own that are, of 6", got["named"])
        checks.mean(f"{at}: features called A's own that are not", got["named wrongly"], "<=", 0.05)
        checks.mean(f"{at}: firings of them without their direction, share", got["foreign"], *_purity(name, quick))
    simple = columns(next(iter(found.values())))["components"]
    checks.mean("planted, baseline: worst cosine of a principal component of what B leaves of A", simple)


def _block(name: str, quick: bool) -> tuple[str, float | None]:
    """What section 7(a1) wants of the count: with mean L1 one direction at least sits elsewhere,
    with sum L1 at 10 % five are there."""
    if "mean" in name:
        return "<=", 5.0
    return (">=", 3.0 if quick else 5.0) if name.startswith("10") else ("report", None)


def _purity(name: str, quick: bool) -> tuple[str, float | None]:
    """In addition to recovery: features called A's own fire with their direction. Thresholds apply to the default."""
    return ("<=", 0.3 if quick else 0.2) if name == "10 %, sum L1" else ("report", None)


_MISSES = {
    "partitioned - plain: best single feature": "a short REINFORCE run leaves no feature of the tuned model's own, so its "
    "exclusive features "
    f"hold little to steer with, and five pairs do not tell the two dictionaries apart; {PAGE}",
    "partitioned: average feature under the same clamp, lift": "where the tuned model stalls it is easily tipped: random "
    "directions of "
    f"the same length do more than the average feature; {PAGE}",
}
"""Checks that miss in the full size, and why."""


def _pair(checks: Checks, studies: list[dict[str, Any]]) -> None:
    about, same = columns(studies), columns([s["base against base"] for s in studies])
    checks.mean("pair: REINFORCE steps to the stalling point", about["rl steps"])
    checks.mean("pair: clean tuned model calls rightly", [tuned for tuned, _ in about["clean"]])
    checks.mean("pair: clean base calls rightly", [base for _, base in about["clean"]])
    checks.mean("pair: features called the tuned model's own", about["own"])
    checks.mean("base against base: features called the tuned model's own", same["own"], "==", 0.0)
    checks.mean("base against base: active features of a's block", [l0["a"] for l0 in same["l0"]])
    lifts = {kind: _steered(checks, kind, about[kind]) for kind in ("partitioned", "plain")}
    checks.mean("partitioned - plain: best single feature", np.subtract(lifts["partitioned"], lifts["plain"]), ">=", -0.05)
    reach = [value for one in about["partitioned"] for value in one["no reach"]]
    checks.worst("largest effect of either model's own features on the other", reach, "==", 0.0)
    _reconstructed(checks, about["reconstruction"])


def _steered(checks: Checks, kind: str, studies: list[dict[str, Any]]) -> list[float]:
    """What steering with one kind of dictionary did; the lift of each study's best single feature."""
    got, parted = columns(studies), kind == "partitioned"
    tables = [
        {row["name"]: codec.from_json(SteeringOutcome, row, "a confirmed change") for row in one["confirmed"]} for one in studies
    ]
    chosen = [table[one["cell"]] for table, one in zip(tables, studies, strict=True)]
    lifts = [one.lift for one in chosen]
    chance = np.array([[row.lift for name, row in table.items() if name.startswith("random")] for table in tables])
    checks.mean(f"{kind}: variance explained, the worse model", [*map(min, got["fve"])])
    checks.mean(f"{kind}: dead features", got["dead"])
    checks.mean(f"{kind}: best single feature, held-out lift", lifts, *((">=", 0.3) if parted else ()))
    checks.mean(f"{kind}: best single feature, length of the change over the state's", [one.size for one in chosen])
    checks.mean(f"{kind}: best single feature, coverage", [one.coverage for one in chosen])
    checks.mean(f"{kind}: best single feature, its place in the order of d", [rank + 1 for rank in got["d rank"]])
    checks.mean(f"{kind}: best single feature, latent scaling", got["latent scaling"])
    checks.mean(f"{kind}: best single feature, ablated", [one["lift"] for one in got["ablated"]])
    checks.mean(f"{kind}: feature of the highest d, best lift on the selection prompts", got["highest d"])
    checks.mean(f"{kind}: random directions of the same length, mean lift", chance.mean(axis=1))
    checks.mean(f"{kind}: random directions of the same length, best lift", chance.max(axis=1))
    as_well = (chance >= np.array(lifts)[:, None]).mean(axis=1)
    checks.mean(f"{kind}: share of random directions that do at least as well", as_well)
    for name in ("tool - plain", "tuned - base"):
        checks.mean(f"{kind}: {name} at the same length, lift", [table[name].lift for table in tables])
    average = [float(np.mean(one["lifts"])) for one in got["average"]]
    checks.mean(f"{kind}: average feature under the same clamp, lift", average, *(("<=", 0.1) if parted else ()))
    return lifts


def _reconstructed(checks: Checks, found: list[dict[str, Any]]) -> None:
    for target, model in enumerate(("tuned", "base")):
        for kind in ("clean", "matched", "mismatched"):
            for j, window in enumerate(WINDOWS):
                checks.mean(f"{model}, {kind}: right tool within {window} tokens", [f[kind][target][j] for f in found])
        for kind in ("matched", "mismatched"):
            checks.mean(f"{model}, {kind}: cosine of the reconstruction", [f[f"{kind}, cosine"][target] for f in found])
