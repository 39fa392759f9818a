"""Section 7(a) A2: a composer of 64 recurrent units over 11 symbols, whose simulated workers anchor on answers that they see.

A plan is up to five steps of three symbols (worker, solve or judge, sees none or all) and an end.
Axis legend: B plans, T symbols, V symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramify.base.seeds import derive_key, generator
from ramify.methods.orchestrator.algorithm import STEPS, Workflow, composer_reward, group_advantages, read_workflow

DOMAINS, WORKERS = 4, 5
BEGIN, END, FIRST, SOLVE, JUDGE, NONE, ALL, SYMBOLS = 0, 1, 2, 7, 8, 9, 10, 11
LONGEST = 3 * STEPS + 1
KAPPA = 0.7
"""Probability that a solver copies the last answer it sees."""


class AnchoringWorkers:
    """Skills by domain: a specialist, a runner-up, an all-rounder, others; a good judge who is a third worker."""

    def __init__(self, seed: int) -> None:
        rng = generator(seed, "workers")
        self.solve = rng.uniform(0.2, 0.45, (DOMAINS, WORKERS))
        self.judge = rng.uniform(0.3, 0.6, (DOMAINS, WORKERS))
        self.order: list[list[int]] = []
        for domain in range(DOMAINS):
            specialist, runner, judge = domain, (domain + 1) % 4, (domain + 2) % 4
            self.solve[domain, WORKERS - 1] = 0.55
            self.solve[domain, specialist], self.solve[domain, runner], self.judge[domain, judge] = 0.72, 0.60, 0.93
            self.order.append([specialist, runner, WORKERS - 1, (domain + 3) % 4, judge])
        self.single, self.routed = float(self.solve.mean(axis=0).max()), float(self.solve.max(axis=1).mean())

    def right(self, domain: int, plan: Workflow, rng: np.random.Generator) -> bool:
        """Whether the last step's answer is right; it takes two random numbers a step whatever happens."""
        answers: list[bool] = []
        for task, worker, seen in zip(plan.subtasks, plan.workers, plan.access, strict=True):
            luck, other = rng.random(2)
            visible = [answers[one] for one in seen]
            if task == "judge":
                picks = any(visible) and luck < self.judge[domain, worker]
                answers.append(bool(visible) and (picks or visible[int(other * len(visible))]))
            elif visible and other < KAPPA:
                answers.append(visible[-1])
            else:
                answers.append(bool(luck < self.solve[domain, worker]))
        return answers[-1]

    def share(self, plans: Sequence[tuple[int, Workflow]], n: int, seed: int) -> float:
        """Share of right answers of (domain, plan) pairs, ``n`` executions each."""
        rng = generator(seed, "executions")
        return float(np.mean([self.right(domain, plan, rng) for domain, plan in plans for _ in range(n)]))

    def by_hand(self, solvers: int, visible: bool = False) -> list[tuple[int, Workflow]]:
        """The ``solvers`` best of each domain, isolated or not, then its best judge."""
        found = []
        for domain in range(DOMAINS):
            access = [tuple(range(step)) if visible else () for step in range(solvers)] + [tuple(range(solvers))]
            workers = (*self.order[domain][:solvers], int(self.judge[domain].argmax()))
            found.append((domain, Workflow((*["solve"] * solvers, "judge"), workers, tuple(access))))
        return found


def read(symbols: Sequence[int]) -> Workflow | None:
    """The plan that symbols spell; None where they spell none."""
    if END not in symbols:
        return None
    body = list(symbols[: list(symbols).index(END)])
    if not body or len(body) % 3:
        return None
    steps = [body[at : at + 3] for at in range(0, len(body), 3)]
    if any(not FIRST <= w < SOLVE or r not in (SOLVE, JUDGE) or a not in (NONE, ALL) for w, r, a in steps):
        return None
    record = {
        "subtasks": ["solve" if role == SOLVE else "judge" for _, role, _ in steps],
        "workers": [worker - FIRST for worker, _, _ in steps],
        "access": [[] if seen == NONE else "all" for _, _, seen in steps],
    }
    try:
        return read_workflow(record, range(WORKERS))
    except ValueError:
        return None


def warm_plans(n: int, shaped: bool, rng: np.random.Generator) -> np.ndarray:
    """(n, T) random plans: of sensible shape (solvers, most of them isolated, and one judge who sees all;
    a quarter single-step), or of none."""
    found = np.full((n, LONGEST), END)
    for row in found:
        if not shaped:
            steps = [
                (int(rng.integers(WORKERS)), int(rng.integers(2)), int(rng.integers(2)))
                for _ in range(rng.integers(1, STEPS + 1))
            ]
        elif rng.random() < 0.25:
            steps = [(int(rng.integers(WORKERS)), 0, 0)]
        else:
            steps = [(int(rng.integers(WORKERS)), 0, int(rng.random() > 0.75)) for _ in range(rng.integers(1, STEPS))]
            steps.append((int(rng.integers(WORKERS)), 1, 1))
        row[: 3 * len(steps)] = [symbol for w, r, a in steps for symbol in (FIRST + w, SOLVE + r, NONE + a)]
    return found


class PlanWriter(nn.Module):
    """The policy: a GRU that is given the domain with every symbol (as initial state alone it learns one plan for all
    domains)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.symbol, self.domain = nn.Embedding(SYMBOLS, width), nn.Embedding(DOMAINS, width)
        self.cell, self.out = nn.GRU(width, width, batch_first=True), nn.Linear(width, SYMBOLS)

    def forward(self, domain: Tensor, symbols: Tensor) -> Tensor:
        """(B, T, V) log-probs of each symbol given those before it."""
        shifted = torch.cat([torch.full_like(symbols[:, :1], BEGIN), symbols[:, :-1]], dim=1)
        hidden = self.cell(self.symbol(shifted) + self.domain(domain)[:, None])[0]
        return F.log_softmax(self.out(hidden), dim=-1)

    @torch.no_grad()
    def write(self, domain: Tensor, rng: np.random.Generator) -> Tensor:
        """(B, T) sampled symbols; everything after an end is an end."""
        last, state, done = torch.full((len(domain), 1), BEGIN), None, torch.zeros(len(domain), dtype=torch.bool)
        columns = []
        for _ in range(LONGEST):
            out, state = self.cell(self.symbol(last) + self.domain(domain)[:, None], state)
            p = torch.softmax(self.out(out[:, 0]), dim=-1).numpy().astype(np.float64).cumsum(axis=1)
            pick = np.minimum((p < rng.random((len(p), 1)) * p[:, -1:]).sum(axis=1), SYMBOLS - 1)
            column = torch.where(done, END, torch.from_numpy(pick))
            done = done | (column == END)
            columns.append(column)
            last = column[:, None]
        return torch.stack(columns, dim=1)


def _mask(symbols: Tensor) -> Tensor:
    """Symbols up to the first end."""
    return ((symbols == END).int().cumsum(dim=1) - (symbols == END).int() == 0).float()


def composing(
    seed: int, start: str = "shaped", visible: bool = False, updates: int = 300, group: int = 64, warm: int = 200, n: int = 200
) -> dict[str, Any]:
    """Warm start (shaped, structureless or none), then GRPO; ``visible``: every step sees all earlier ones in training."""
    torch.set_num_threads(1)
    torch.manual_seed(derive_key(seed, "writer"))
    workers, writer = AnchoringWorkers(seed), PlanWriter()
    optimizer = torch.optim.Adam(writer.parameters(), 3e-3)
    rng = generator(seed, "warm", start)
    for _ in range(0 if start == "none" else warm):
        symbols = torch.from_numpy(warm_plans(64, start == "shaped", rng))
        domain = torch.from_numpy(rng.integers(0, DOMAINS, 64))
        own, mask = writer(domain, symbols).gather(2, symbols[..., None])[..., 0], _mask(symbols)
        _step(optimizer, -(own * mask).sum() / mask.sum())
    found: dict[str, Any] = {"single": workers.single, "routed": workers.routed, "warm": _told(writer, workers, seed, n, visible)}
    rng = generator(seed, "grpo", start, int(visible))
    domain = torch.arange(DOMAINS).repeat_interleave(group)
    for _ in range(updates):
        symbols = writer.write(domain, rng)
        rewards = np.array([_reward(workers, int(d), one, rng, visible) for d, one in zip(domain, symbols.tolist(), strict=True)])
        advantage = np.concatenate([group_advantages(one) for one in rewards.reshape(DOMAINS, group)])
        _grpo(writer, optimizer, domain, symbols, torch.from_numpy(advantage.astype(np.float32)))
    return found | {"end": _told(writer, workers, seed, n, visible), "hand": _by_hand(workers, seed, n)}


def _grpo(writer: PlanWriter, optimizer: torch.optim.Optimizer, domain: Tensor, symbols: Tensor, advantage: Tensor) -> None:
    """Two passes of the clipped objective with an entropy bonus of .01."""
    mask, old = _mask(symbols), None
    for _ in range(2):
        logp = writer(domain, symbols)
        own = logp.gather(2, symbols[..., None])[..., 0]
        old = own.detach() if old is None else old
        ratio = torch.exp(own - old)
        gained = torch.minimum(ratio * advantage[:, None], ratio.clamp(0.8, 1.2) * advantage[:, None])
        entropy = -(logp.exp() * logp).sum(dim=-1)
        _step(optimizer, -((gained + 0.01 * entropy) * mask).sum() / mask.sum())


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _reward(workers: AnchoringWorkers, domain: int, symbols: Sequence[int], rng: np.random.Generator, visible: bool) -> float:
    plan = read(symbols)
    if plan is None:
        return composer_reward(False, 0.0)
    return composer_reward(True, float(workers.right(domain, all_visible(plan) if visible else plan, rng)))


def all_visible(plan: Workflow) -> Workflow:
    """The same steps, each of which sees every earlier one."""
    return Workflow(plan.subtasks, plan.workers, tuple(tuple(range(step)) for step in range(len(plan))))


def _told(writer: PlanWriter, workers: AnchoringWorkers, seed: int, n: int, visible: bool) -> dict[str, float]:
    """What sampled plans come to, ``n`` a domain: share right as trained and with everything visible, steps, parse rate."""
    domain = torch.arange(DOMAINS).repeat_interleave(n)
    plans = [read(one) for one in writer.write(domain, generator(seed, "report")).tolist()]
    kept = [(int(d), plan) for d, plan in zip(domain, plans, strict=True) if plan is not None]
    seen = [(d, all_visible(plan)) for d, plan in kept]
    parsed = len(kept) / len(plans)
    if not kept:
        return {"right": 0.0, "visible": 0.0, "steps": 0.0, "parsed": 0.0}
    return {
        "right": parsed * workers.share(seen if visible else kept, 10, seed),
        "visible": parsed * workers.share(seen, 10, seed),
        "steps": float(np.mean([len(plan) for _, plan in kept])),
        "parsed": parsed,
    }


def _by_hand(workers: AnchoringWorkers, seed: int, n: int) -> dict[str, float]:
    found = {}
    for solvers in (2, 3, 4):
        for name, visible in (("isolated", False), ("visible", True)):
            found[f"{solvers} {name}"] = workers.share(workers.by_hand(solvers, visible), 10 * n, seed)
    return found
