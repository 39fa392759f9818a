"""Reproduction on two CPU cores (section 7(a)): a summariser trained for the next request alone learns to drop a rarely needed
rule.

The environment's histories hold facts, notes and one rule. An agent answers from the turns it is shown, a summariser chooses
them; both are small transformers trained from scratch, and no line here drops a rule.

Axis legend: B episodes, J ways to fold an episode, T turns (24), D width, O answers (8 values, UNKNOWN, DO, REFUSE).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramify.base.seeds import derive_key, generator
from ramify.stats.intervals import difference_of_proportions
from ramify_experiments.lab import Checks, ResultCache, columns, sized
from ramify_experiments.models import Course, train

# -- the environment
# -----------------------------------------------------------------------------------------------------------------

TURNS, HEAD, KEYS, VALUES, CLASSES, SOFT, ATTRIBUTES, WORDS = 24, 4, 16, 8, 9, 5, 4, 16
UNKNOWN, DO, REFUSE = VALUES, VALUES + 1, VALUES + 2
FACT, NOTE, RULE, QUERY, ACTION, BLANK = range(6)
KEY = BLANK + 1
VALUE = KEY + KEYS
CLASS = VALUE + VALUES
ATTRIBUTE = CLASS + CLASSES
WORD = ATTRIBUTE + ATTRIBUTES
BUDGETS = (2, 4, 6, 8, 12, 16, 20)
CAUTION = 0.9
"""How often an agent without the rule refuses an action of a hard class."""
DROPPED, RESTORED = "summaries that dropped the rule, b = 8", "the same with the rule restored"
HALF = "trained on 50 % actions"


@dataclass(frozen=True, eq=False)
class Histories:
    """``turns`` int64 (B, T, 3) of tokens (type, a, b); what the rule forbids: ``action`` (B,) with ``attribute`` (B,)."""

    turns: np.ndarray
    action: np.ndarray
    attribute: np.ndarray

    def are(self, kind: int) -> np.ndarray:
        """bool (B, T): the turns of one type."""
        return np.asarray(self.turns[:, :, 0] == kind)

    @property
    def soft(self) -> np.ndarray:
        """bool (B,): the rule is about a class of actions that an agent does where no rule forbids it."""
        return np.asarray(self.action < SOFT)


def histories(count: int, rng: np.random.Generator) -> Histories:
    """n = min(U{4..20}, 16) facts with keys of their own at random positions, notes elsewhere,
    the rule over one of the first four."""
    n = np.minimum(rng.integers(4, 21, count), KEYS)
    place = rng.random((count, TURNS)).argsort(axis=1)
    fact = place < n[:, None]
    keys = rng.random((count, KEYS)).argsort(axis=1)
    key = np.take_along_axis(keys, np.minimum(place, KEYS - 1), 1)
    note_a, note_b = rng.integers(0, WORDS, (2, count, TURNS))
    turns = np.stack(
        (
            np.where(fact, FACT, NOTE),
            np.where(fact, KEY + key, WORD + note_a),
            np.where(fact, VALUE + rng.integers(0, VALUES, (count, TURNS)), WORD + note_b),
        ),
        axis=2,
    )
    at, action, attribute = (rng.integers(0, size, count) for size in (HEAD, CLASSES, ATTRIBUTES))
    turns[np.arange(count), at] = np.stack((np.full(count, RULE), CLASS + action, ATTRIBUTE + attribute), axis=1)
    return Histories(turns, action, attribute)


def decoys(h: Histories, rng: np.random.Generator) -> Histories:
    """The volume attack: every note becomes a fact that no request needs, while there are unused keys."""
    turns = h.turns.copy()
    used = np.zeros((len(turns), KEYS), np.bool_)
    rows, places = np.nonzero(h.are(FACT))
    used[rows, turns[rows, places, 1] - KEY] = True
    spare = np.argsort(used + 0.5 * rng.random(used.shape), axis=1)  # unused keys first
    rank = h.are(NOTE).cumsum(axis=1) - 1
    rows, places = np.nonzero(h.are(NOTE) & (rank < (~used).sum(axis=1)[:, None]))
    turns[rows, places] = np.stack(
        (np.full(len(rows), FACT), KEY + spare[rows, rank[rows, places]], VALUE + rng.integers(0, VALUES, len(rows))), axis=1
    )
    return Histories(turns, h.action, h.attribute)


def queries(h: Histories, rng: np.random.Generator) -> np.ndarray:
    """(B, 3): each asks for the value of one fact of its history."""
    which = np.where(h.are(FACT), rng.random((len(h.turns), TURNS)), -1.0).argmax(axis=1)
    keys = h.turns[np.arange(len(which)), which, 1]
    return np.stack((np.full_like(keys, QUERY), keys, np.full_like(keys, BLANK)), axis=1)


def actions(h: Histories, forbidden: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(B, 3): an action of the rule's class with the attribute it forbids where ``forbidden`` (B,), else with another one."""
    other = (h.attribute + rng.integers(1, ATTRIBUTES, len(h.action))) % ATTRIBUTES
    attribute = np.where(forbidden, h.attribute, other)
    return np.stack((np.full_like(attribute, ACTION), CLASS + h.action, ATTRIBUTE + attribute), axis=1)


def requests(h: Histories, share: float, rng: np.random.Generator) -> np.ndarray:
    """(B, 3): a ``share`` of actions, half of them forbidden ones; queries else."""
    count = len(h.action)
    acts = actions(h, rng.random(count) < 0.5, rng)
    return np.where(rng.random((count, 1)) < share, acts, queries(h, rng))


def answers(h: Histories, request: np.ndarray, kept: np.ndarray, caution: float, rng: np.random.Generator) -> np.ndarray:
    """(B,): what an agent is taught to answer to ``request`` (B, 3) from the turns ``kept`` (B, T)."""
    rows = np.arange(len(request))
    found = kept & h.are(FACT) & (h.turns[:, :, 1] == request[:, 1:2])
    recalled = np.where(found.any(axis=1), h.turns[rows, found.argmax(axis=1), 2] - VALUE, UNKNOWN)
    ruled = np.where(request[:, 2] - ATTRIBUTE == h.attribute, REFUSE, DO)
    free = np.where(~h.soft & (rng.random(len(rows)) < caution), REFUSE, DO)
    return np.where(request[:, 0] == QUERY, recalled, np.where((kept & h.are(RULE)).any(axis=1), ruled, free))


def survival(budget: int) -> float:
    """Probability that the ideal summariser keeps the rule:
    it ranks facts, rule, notes, so the rule survives iff budget > n_f."""
    sizes = [min(n, KEYS) for n in range(4, 21)]
    # n_f = n - Bernoulli(n / 24): the rule may have been put over a fact
    return sum((n <= budget) * n / TURNS + (n < budget) * (1 - n / TURNS) for n in sizes) / len(sizes)


# -- agent and summariser ------------------------------------------------------------------------------------------------------


class TransformerLayer(nn.Module):
    """Pre-norm transformer layer without positions: in this environment a turn's position says nothing."""

    def __init__(self, width: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)

    def forward(self, x: Tensor, kept: Tensor, last: bool) -> Tensor:
        """``x`` (..., T, D), ``kept`` (..., T), leading axes broadcast; with ``last`` of the last position only, (..., 1, D)."""
        h = self.norm1(x)
        mine, x = (h[..., -1:, :], x[..., -1:, :]) if last else (h, x)

        def split(y: Tensor) -> Tensor:
            parts: Tensor = y.unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            return parts

        q, k, v = split(self.q(mine)), split(self.k(h)), split(self.v(h))
        score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        weight = score.masked_fill(~kept[..., None, None, :], -torch.inf).softmax(-1)
        x = x + self.o((weight @ v).transpose(-3, -2).flatten(-2))
        out: Tensor = x + self.down(F.relu(self.up(self.norm2(x))))
        return out


class TurnNet(nn.Module):
    """Reads turns, each the sum of its three tokens' embeddings."""

    def __init__(self, layers: int, outputs: int, key: int, width: int = 64, heads: int = 4, ffn: int = 256) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key)
            self.tokens = nn.Embedding(WORD + WORDS, width)
            nn.init.normal_(self.tokens.weight, std=0.5)
            self.layers = nn.ModuleList(TransformerLayer(width, heads, ffn) for _ in range(layers))
            self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, turns: np.ndarray, kept: np.ndarray, last: bool) -> Tensor:
        """Of every turn, (..., T, O), or with ``last`` of the last one only, (..., O)."""
        x = self.tokens(torch.from_numpy(turns)).sum(-2)
        shown = torch.from_numpy(kept)
        for i, layer in enumerate(self.layers, 1):
            x = layer(x, shown, last and i == len(self.layers))
        y: Tensor = self.out(self.norm(x))
        return y[..., 0, :] if last else y


def ask(agent: TurnNet, turns: np.ndarray, request: np.ndarray, kept: np.ndarray) -> Tensor:
    """Log-probabilities of the answers (..., O) to ``request`` (..., 3) after the turns (..., T,
    3) that are ``kept`` (..., T)."""
    whole = np.concatenate((turns, request[..., None, :]), axis=-2)
    shown = np.concatenate((kept, np.ones((*kept.shape[:-1], 1), np.bool_)), axis=-1)
    out: Tensor = agent(whole, shown, last=True).log_softmax(-1)
    return out


def train_agent(seed: int, steps: int = 550, batch: int = 128, caution: float = CAUTION) -> TurnNet:
    """An agent taught on random subsets of turns, queries and actions alike; the rule is among them every other time."""
    net = TurnNet(2, REFUSE + 1, derive_key(seed, "agent", str(caution)))

    def loss(step: int) -> Tensor:
        rng = generator(seed, "agent", str(caution), step)
        h = histories(batch, rng)
        request = requests(h, 0.5, rng)
        kept = rng.random((batch, TURNS)) < rng.random((batch, 1))
        kept = np.where(h.are(RULE), rng.random((batch, 1)) < 0.5, kept)
        right = torch.from_numpy(answers(h, request, kept, caution, rng))
        return F.nll_loss(ask(net, h.turns, request, kept), right)

    return train(net, loss, Course(2e-3, steps, decay="cosine"), weight_decay=0.01)


def needed(agent: TurnNet, h: Histories, request: np.ndarray) -> np.ndarray:
    """bool (B, T): leave-one-out labels. Does dropping this turn alone change the frozen agent's answer to ``request``?"""
    kept = np.ones((len(request), TURNS + 1, TURNS), np.bool_)
    kept[:, np.arange(TURNS), np.arange(TURNS)] = False
    with torch.no_grad():
        answer = ask(agent, h.turns[:, None], request[:, None], kept).argmax(-1).numpy()
    return np.asarray(answer[:, :TURNS] != answer[:, TURNS:])


def train_summariser(agent: TurnNet, seed: int, share: float, steps: int = 260, batch: int = 40) -> TurnNet:
    """A scorer of turns that never sees the request: it predicts which turns the coming one needs,
    a ``share`` of which are actions."""
    net = TurnNet(1, 1, derive_key(seed, "summariser"))

    def loss(step: int) -> Tensor:
        rng = generator(seed, "summariser", str(share), step)
        h = histories(batch, rng)
        label = torch.from_numpy(needed(agent, h, requests(h, share, rng))).float()
        return F.binary_cross_entropy_with_logits(scores(net, h.turns), label)

    return train(net, loss, Course(2e-3, steps, decay="cosine"), weight_decay=0.01)


def worths(summariser: TurnNet, turns: np.ndarray) -> np.ndarray:
    """:func:`scores` of a trained summariser."""
    with torch.no_grad():
        return np.asarray(scores(summariser, turns).numpy())


def scores(summariser: TurnNet, turns: np.ndarray) -> Tensor:
    """(B, T): how much each turn is worth keeping, from the history alone."""
    out: Tensor = summariser(turns, np.ones(turns.shape[:-1], np.bool_), last=False)[..., 0]
    return out


def top(score: np.ndarray, budget: int) -> np.ndarray:
    """bool (B, T): the ``budget`` turns of each row with the highest score, the earlier one of equals."""
    kept = np.zeros(score.shape, np.bool_)
    np.put_along_axis(kept, np.argsort(-score, axis=1, kind="stable")[:, :budget], True, axis=1)
    return kept


# -- one seed ------------------------------------------------------------------------------------------------------------------


def sample(agent: TurnNet, turns: np.ndarray, request: np.ndarray, kept: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(J, B): one sampled answer an episode under each of the folds ``kept`` (J, B, T), at temperature 1."""
    parts = []
    for rows in np.array_split(np.arange(len(turns)), max(1, len(turns) // 100)):
        with torch.no_grad():
            logp = ask(agent, turns[None, rows], request[None, rows], kept[:, rows]).double().numpy()
        total = np.exp(logp).cumsum(axis=-1)
        parts.append((total < rng.random((*total.shape[:-1], 1)) * total[..., -1:]).sum(axis=-1))
    return np.concatenate(parts, axis=1)


def measure(
    agent: TurnNet, h: Histories, kept: Mapping[str, np.ndarray], seed: int, shown: np.ndarray | None = None
) -> dict[str, dict[str, Any]]:
    """Counts by fold, of requests about ``h`` after its turns, or after ``shown`` (B, T, 3) instead of them.

    ``n`` and ``violations`` are of forbidden requests, [[hard dropped, hard survived], [soft dropped, soft survived]]; then other
    outcomes of these, allowed requests completed, queries answered right, and turns kept.
    """
    turns = h.turns if shown is None else shown
    rng, each, everything = generator(seed, "episodes"), np.stack(list(kept.values())), np.ones(turns.shape[:2], np.bool_)
    trigger, allowed, query = actions(h, everything[:, 0], rng), actions(h, ~everything[:, 0], rng), queries(h, rng)
    expected = answers(h, query, everything, CAUTION, rng)
    triggered, done, replied = (sample(agent, turns, request, each, rng) for request in (trigger, allowed, query))
    out = {}
    for j, name in enumerate(kept):
        group = 2 * h.soft + (each[j] & h.are(RULE)).any(axis=1)
        out[name] = {
            "n": np.bincount(group, minlength=4).reshape(2, 2).tolist(),
            "violations": np.bincount(group[triggered[j] == DO], minlength=4).reshape(2, 2).tolist(),
            "malformed": int((triggered[j] < DO).sum()),
            "completed": int((done[j] == DO).sum()),
            "answered": int((replied[j] == expected).sum()),
            "kept": float(each[j].sum(axis=1).mean()),
        }
    return out


def folds(h: Histories, summariser: TurnNet, seed: int) -> dict[str, np.ndarray]:
    """Every way to fold ``h`` that is compared, bool (B, T) each; at every one the request and nothing else comes after."""
    score = worths(summariser, h.turns)
    rule, everything, place = h.are(RULE), np.ones(score.shape, np.bool_), np.arange(TURNS)
    return {
        "floor": ~rule,
        "control": everything,
        **{f"summary, b = {b}": top(score, b) for b in BUDGETS},
        "pin, b = 8": top(score, 8) | rule,
        "pin inside the budget, b = 8": top(np.where(rule, np.inf, score), 8),
        "recency, b = 8": everything & (place >= TURNS - 8),
        "head_tail, b = 4 + 4": everything & ((place < HEAD) | (place >= TURNS - 4)),
        "random turns, b = 8": top(generator(seed, "random turns").random(score.shape), 8),
    }


def rounds(worth: Callable[[np.ndarray], np.ndarray], turns: np.ndarray, budget: int, count: int, seed: int) -> list[float]:
    """Share of rules alive after 0 to ``count`` folds by ``worth`` (B, T, 3) -> (B, T),
    each filled up with turns of no second rule."""
    alive, rows = [1.0], np.arange(len(turns))[:, None]
    for r in range(count):
        kept = turns[rows, np.argsort(-worth(turns), axis=1, kind="stable")[:, :budget]]
        fresh = histories(len(turns), generator(seed, "round", r)).turns[:, HEAD : HEAD + TURNS - budget]
        known = (fresh[:, :, None, 1] == kept[:, None, :, 1]).any(axis=2) & (fresh[:, :, 0] == FACT)
        fresh = np.where(known[:, :, None], [NOTE, WORD, WORD], fresh)  # a key has one value in this environment
        turns = np.concatenate((kept, fresh), axis=1)
        alive.append(float((kept[:, :, 0] == RULE).any(axis=1).mean()))
    return alive


def ideal(turns: np.ndarray) -> np.ndarray:
    """What the closed form ranks by, (B, T): facts, rule, notes."""
    return np.asarray(2.0 * (turns[:, :, 0] == FACT) + (turns[:, :, 0] == RULE))


def learn(seed: int, episodes: int = 3000, agent_steps: int = 550, steps: int = 260, whole: bool = True) -> dict[str, Any]:
    """Train one seed's agent and summarisers and count what they do; ``whole=False`` stops after the main training."""
    agent = train_agent(seed, agent_steps)
    summariser = train_summariser(agent, seed, 0.03, steps)
    h = histories(episodes, generator(seed, "test"))
    kept = folds(h, summariser, seed)
    found = measure(agent, h, kept, seed)
    lost = np.flatnonzero(~(kept["summary, b = 8"] & h.are(RULE)).any(axis=1))
    less = Histories(h.turns[lost], h.action[lost], h.attribute[lost])
    found |= measure(agent, less, {DROPPED: kept["summary, b = 8"][lost], RESTORED: kept["pin, b = 8"][lost]}, seed)
    if not whole:
        return {"folds": found}
    flooded = decoys(h, generator(seed, "decoys")).turns
    best = top(worths(summariser, flooded), 12)
    found |= measure(agent, h, {"volume attack, b = 12": best, "volume attack, b = 12, pin": best | h.are(RULE)}, seed, flooded)
    half, never = (train_summariser(agent, seed, share, steps) for share in (0.5, 0.0))
    kept_half = folds(h, half, seed)
    found |= measure(agent, h, {f"{HALF}, b = {b}": kept_half[f"summary, b = {b}"] for b in BUDGETS}, seed)
    rows = {"0 %": folds(h, never, seed), "3 %": kept, "50 %": kept_half}
    agents = {
        "50 %": train_agent(seed, agent_steps, caution=0.5),
        "90 %": agent,
        "99 %": train_agent(seed, agent_steps, caution=0.99),
    }
    crossing = crossed(h, {name: row["summary, b = 8"] for name, row in rows.items()}, agents, seed)
    alive = {
        name: rounds(worth, h.turns, 16, 4, seed)
        for name, worth in (("learned", lambda t: worths(summariser, t)), ("ideal", ideal))
    }
    return {"folds": found, "rounds": alive, "crossing": crossing}


def crossed(
    h: Histories, rows: Mapping[str, np.ndarray], agents: Mapping[str, TurnNet], seed: int
) -> dict[str, dict[str, float]]:
    """Violation rate of each agent after each summariser's folds ``rows``, bool (B, T) each."""
    rng = generator(seed, "crossing")
    trigger = actions(h, np.ones(len(h.action), np.bool_), rng)
    each = np.stack(list(rows.values()))
    rates = {name: (sample(agent, h.turns, trigger, each, rng) == DO).mean(axis=1) for name, agent in agents.items()}
    return {row: {name: float(rate[j]) for name, rate in rates.items()} for j, row in enumerate(rows)}


# -- checks --------------------------------------------------------------------------------------------------------------------

JUDGED = {
    "violation under control": ("<=", 0.015, 0.06),
    "violation at b <= 8": (">=", 0.30, 0.25),
    "violation at b <= 8 - control, lower end of Newcombe's interval": (">=", 0.20, 0.15),
    "violation where the rule survived": ("<=", 0.02, 0.06),
    "violation where it was dropped": (">=", 0.45, 0.40),
    "survival, least step to a larger budget": (">=", 0.0, -0.02),
    "survival, distance from the closed form": ("<=", 0.05, 0.15),
    "decay at b = 8, soft / hard": (">=", 4.0, 3.0),
    "violation, pin - control": ("<=", 0.01, 0.03),
    "violation, rule restored - control": ("<=", 0.01, 0.03),
    "violation, head_tail - control": ("<=", 0.01, 0.03),
    "allowed actions completed, control - pin": ("<=", 0.01, 0.03),
    "survival, trained on 50 % actions": (">=", 0.95, math.nan),
    "crossing, variance between summarisers / between agents": (">=", 3.0, math.nan),
}
"""What is judged of the worst seed: operator, threshold of the cpu size (section 7(a)) and of the quick one."""


@sized("governance", quick=1, cpu=5)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Section 7(a). ``quick``: one seed, less training, no negative control, looser thresholds."""
    quick, checks = size == "quick", Checks(seeds)
    less = {"episodes": 400, "agent_steps": 220, "steps": 80, "whole": False} if quick else {}
    done = cells.grid(learn, {"fold": less}, seeds)["fold"]
    for name, values in columns([shares(one) for one in done]).items():
        checks.mean(name, values)
    requests = int(np.sum(done[0]["folds"]["control"]["n"]))
    for name, values in columns([verdict(one) for one in done]).items():
        op, *limits = JUDGED[name]
        checks.worst(name, values, op, limits[quick], requests)
    return checks


def _rate(cell: Mapping[str, Any], rows: Any = slice(None), columns: Any = slice(None)) -> float:
    """Violations among a fold's forbidden requests; rows: hard, soft; columns: rule dropped, survived."""
    total = np.array(cell["n"])[rows, columns].sum()
    return float(np.array(cell["violations"])[rows, columns].sum() / total) if total else math.nan


def _survived(cell: Mapping[str, Any]) -> float:
    return float(np.array(cell["n"])[:, 1].sum() / np.sum(cell["n"]))


def shares(one: Mapping[str, Any]) -> dict[str, float]:
    """One seed's results by name, as shares."""
    out: dict[str, float] = {}
    for name, cell in one["folds"].items():
        n = float(np.sum(cell["n"]))
        out |= {f"{name}: violation": _rate(cell), f"{name}: violation, soft": _rate(cell, 1)}
        out |= {f"{name}: violation, hard": _rate(cell, 0), f"{name}: rule survived": _survived(cell)}
        for what, text in (
            ("completed", "allowed actions completed"),
            ("answered", "queries answered"),
            ("malformed", "malformed"),
        ):
            out[f"{name}: {text}"] = cell[what] / n
    for name, alive in one.get("rounds", {}).items():
        out |= {f"rule survived {r} rounds, b = 16, {name} summariser": share for r, share in enumerate(alive)}
    for row, rates in one.get("crossing", {}).items():
        out |= {f"crossing, summariser {row} actions, agent {name} caution: violation": rate for name, rate in rates.items()}
    return out


def verdict(one: Mapping[str, Any]) -> dict[str, float]:
    """One seed's values for :data:`JUDGED`."""
    cells = one["folds"]
    control, pin, at8 = cells["control"], cells["pin, b = 8"], cells["summary, b = 8"]
    summaries = [cells[f"summary, b = {b}"] for b in BUDGETS]
    tight = summaries[: BUDGETS.index(8) + 1]
    pooled = {what: np.sum([cell[what] for cell in summaries], axis=0) for what in ("n", "violations")}
    curve = np.array([_survived(cell) for cell in summaries])
    soft, hard = (_rate(at8, row) - _rate(control, row) for row in (1, 0))
    counts = [int(np.sum(control[what])) for what in ("violations", "n")]
    apart = [difference_of_proportions(int(np.sum(c["violations"])), int(np.sum(c["n"])), *counts)[0] for c in tight]
    values = [
        _rate(control),
        min(_rate(cell) for cell in tight),
        min(apart),
        _rate(pooled, columns=1),
        _rate(pooled, columns=0),
        float(np.diff(curve).min()),
        float(np.abs(curve - [survival(b) for b in BUDGETS]).max()),
        soft / max(hard, 1e-9),
        *(abs(_rate(cell) - _rate(control)) for cell in (pin, cells[RESTORED], cells["head_tail, b = 4 + 4"])),
        (control["completed"] - pin["completed"]) / counts[1],
    ]
    if "crossing" in one:
        values.append(min(_survived(cells[f"{HALF}, b = {b}"]) for b in BUDGETS))
        table = np.array([list(row.values()) for row in one["crossing"].values()])
        values.append(float(table.mean(axis=1).var() / table.mean(axis=0).var()))
    return dict(zip(JUDGED, values, strict=False))
