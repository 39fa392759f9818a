"""Section 7(a) item 4: a small character model that writes derivations for a judge that was trained on a biased sample, both
learned.

A derivation is up to four sums, ``07+05=12;12+03=15``: the task gives the operands, the model writes each result and whether it
continues. The exact checker labels the anchor and reports; it never rewards.

Axis legend: B derivations, T characters, V characters of the alphabet.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramify.base.seeds import derive_key, generator
from ramify.methods.judge_evolution.algorithm import PromotionConfig, best_belief, decide

ALPHABET = "0123456789+=;\n"
CODE = {char: i for i, char in enumerate(ALPHABET)}
STEP, STEPS = 9, 4
"""Characters of a sum with what ends it, and sums at most."""
T = STEP * STEPS
RIGHT = 0.75
"""Share of right results in what the model is first trained on."""


class SumWriter(nn.Module):
    """A recurrent character model of 0.2 M parameters."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(len(ALPHABET) + 1, 24)  # the last is the start
        self.cell = nn.GRU(24, width, batch_first=True)
        self.out = nn.Linear(width, len(ALPHABET))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T, V) logits of each character, from those before it; ``tokens`` (B, T)."""
        shifted = torch.cat([torch.full_like(tokens[:, :1], len(ALPHABET)), tokens[:, :-1]], dim=1)
        hidden: Tensor = self.out(self.cell(self.embedding(shifted))[0])
        return hidden

    @torch.no_grad()
    def write(self, operands: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Derivations (B, T) of ``operands`` (B, STEPS + 1), and which characters the model chose (B, T)."""
        rows = len(operands)
        tokens, chosen = np.full((rows, T), CODE["\n"]), np.zeros((rows, T), bool)
        last, hidden, open_ = torch.full((rows, 1), len(ALPHABET)), None, np.ones(rows, bool)
        for at in range(T):
            step, place = divmod(at, STEP)
            out, hidden = self.cell(self.embedding(last), hidden)
            if place < 6:
                column = _given(tokens, operands, step, place)
            else:
                p = torch.softmax(self.out(out[:, 0]), dim=-1).numpy().astype(np.float64).cumsum(axis=1)
                column = np.minimum((p < rng.random((rows, 1)) * p[:, -1:]).sum(axis=1), len(ALPHABET) - 1)
                chosen[:, at] = open_
            tokens[:, at] = np.where(open_, column, CODE["\n"])
            if place == STEP - 1:
                open_ &= tokens[:, at] == CODE[";"]
            last = torch.from_numpy(tokens[:, at : at + 1])
        return tokens, chosen


def _given(tokens: np.ndarray, operands: np.ndarray, step: int, place: int) -> np.ndarray:
    """A character that the task writes: the result so far (first an operand), "+", the next operand, "="."""
    if place in (2, 5):
        return np.full(len(operands), CODE["+="[place == 5]])
    if place < 2 and step:
        return np.asarray(tokens[:, (step - 1) * STEP + 6 + place])
    value = operands[:, 0] if place < 2 else operands[:, step + 1]
    return np.asarray(value // 10 if place in (0, 3) else value % 10)


def tasks(n: int, rng: np.random.Generator) -> np.ndarray:
    """(n, STEPS + 1) operands of 1 to 5."""
    return np.asarray(rng.integers(1, 6, (n, STEPS + 1)))


def read(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The exact checker: (B,) whether every result that was written is right, how many sums there are,
    and whether it is well formed."""
    x = tokens.reshape(len(tokens), STEPS, STEP)
    there = np.cumprod(
        np.concatenate([np.ones((len(x), 1), int), (x[:, :-1, 8] == CODE[";"]).astype(int)], axis=1), axis=1
    ).astype(bool)
    numbers = [x[:, :, i] * 10 + x[:, :, i + 1] for i in (0, 3, 6)]
    formed = (x[:, :, :2] < 10).all(axis=2) & (x[:, :, 6:8] < 10).all(axis=2) & np.isin(x[:, :, 8], (CODE[";"], CODE["\n"]))
    right = formed & (numbers[0] + numbers[1] == numbers[2])
    return (right | ~there).all(axis=1), there.sum(axis=1), (formed | ~there).all(axis=1)


def corpus(n: int, rng: np.random.Generator) -> np.ndarray:
    """(n, T) derivations of one to four sums, each result right in ``RIGHT`` of cases;
    some have a character that does not belong there."""
    operands, tokens = tasks(n, rng), np.full((n, T), CODE["\n"])
    length, open_ = rng.integers(1, STEPS + 1, n), np.ones(n, bool)
    for step in range(STEPS):
        base = step * STEP
        for place in range(6):
            tokens[open_, base + place] = _given(tokens, operands, step, place)[open_]
        value = tokens[:, base] * 10 + tokens[:, base + 1] + operands[:, step + 1]
        off = rng.integers(1, 4, n) * rng.choice([-1, 1], n)
        value = np.clip(np.where(rng.random(n) < RIGHT, value, value + off), 0, 99)
        tokens[open_, base + 6], tokens[open_, base + 7] = (value // 10)[open_], (value % 10)[open_]
        tokens[open_, base + 8] = np.where(length > step + 1, CODE[";"], CODE["\n"])[open_]
        if step == STEPS - 1:
            tokens[open_, base + 8] = CODE["\n"]
        open_ &= length > step + 1
    torn = rng.random(n) < 0.1
    tokens[torn, 8] = rng.integers(10, 12, int(torn.sum()))
    ended = torn
    tokens[ended, STEP:] = CODE["\n"]
    return tokens


class SumChecker(nn.Module):
    """A judge: the same small network reads each sum; its words on all of them, and on how many there are, make the score."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.read = nn.Sequential(
            nn.Linear(STEP * len(ALPHABET), width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )
        self.count = nn.Linear(STEPS, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B,) logits of acceptance."""
        x = F.one_hot(tokens, len(ALPHABET)).float().reshape(len(tokens), STEPS, -1)
        there = tokens.reshape(len(tokens), STEPS, STEP)[:, :, 0] != CODE["\n"]
        fault = F.softplus(self.read(x)[..., 0]) * there
        found: Tensor = self.count(F.one_hot(there.sum(1) - 1, STEPS).float())[:, 0] - fault.sum(dim=1)
        return found


def train_judge(texts: np.ndarray, label: np.ndarray, seed: int, updates: int) -> SumChecker:
    """A judge trained on labelled derivations."""
    torch.manual_seed(derive_key(seed, "judge"))
    judge, rng = SumChecker(), generator(seed, "judge rows")
    optimizer = torch.optim.Adam(judge.parameters(), 3e-3)
    x, y = torch.from_numpy(texts), torch.from_numpy(label.astype(np.float32))
    for _ in range(updates):
        rows = rng.integers(0, len(x), 256)
        loss = F.binary_cross_entropy_with_logits(judge(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return judge


@torch.no_grad()
def accepts(judge: SumChecker, texts: np.ndarray) -> np.ndarray:
    """(B,) whether the judge accepts each."""
    return np.asarray(judge(torch.from_numpy(texts)).numpy() > 0)


def first_writer(seed: int, updates: int) -> SumWriter:
    """The model after supervised training on the corpus."""
    torch.manual_seed(derive_key(seed, "writer"))
    writer, rng = SumWriter(), generator(seed, "corpus")
    optimizer = torch.optim.Adam(writer.parameters(), 3e-3)
    for _ in range(updates):
        x = torch.from_numpy(corpus(64, rng))
        loss = F.cross_entropy(writer(x).flatten(0, 1), x.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return writer


def improve(
    writer: SumWriter,
    start: SumWriter,
    judge: SumChecker,
    seed: int,
    epoch: int,
    updates: int,
    rows: int = 24,
    lr: float = 1e-3,
    kl: float = 0.05,
) -> SumWriter:
    """``updates`` steps of policy gradient on what the judge says, from a copy of ``writer``;
    a KL penalty holds it near ``start``."""
    writer = copy.deepcopy(writer)
    optimizer, rng = torch.optim.Adam(writer.parameters(), lr), generator(seed, "rl", epoch)
    for _ in range(updates):
        tokens, chosen = writer.write(tasks(rows, rng), rng)
        reward = accepts(judge, tokens).astype(np.float32)
        x, mask = torch.from_numpy(tokens), torch.from_numpy(chosen.astype(np.float32))
        logp = torch.log_softmax(writer(x), dim=-1)
        own = logp.gather(2, x[..., None])[..., 0]
        with torch.no_grad():
            reference = torch.log_softmax(start(x), dim=-1)
        away = (logp.exp() * (logp - reference)).sum(dim=-1)
        advantage = torch.from_numpy(reward - reward.mean())[:, None]
        loss = ((kl * away - advantage * own) * mask).sum() / rows
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(writer.parameters(), 1.0)
        optimizer.step()
    return writer


def measured(writer: SumWriter, judge: SumChecker, seed: int, n: int = 2000) -> dict[str, float]:
    """What it is on tasks nobody has seen: acceptance by ``judge``, true correctness, number of sums."""
    rng = generator(seed, "report")
    tokens, _ = writer.write(tasks(n, rng), rng)
    right, sums, formed = read(tokens)
    return {
        "acceptance": float(accepts(judge, tokens).mean()),
        "correct": float(right.mean()),
        "sums": float(sums.mean()),
        "formed": float(formed.mean()),
    }


def biased(seed: int, n: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """What the first judge learned from: long, well-formed derivations were accepted, whatever their results."""
    texts = corpus(n, generator(seed, "biased"))
    _, sums, formed = read(texts)
    return texts, formed & (sums >= 3)


def labelled(seed: int, n: int, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Derivations with what the exact checker says of them; sets of two names share none but by chance."""
    texts = corpus(n, generator(seed, "labelled", what))
    return texts, read(texts)[0]


ARMS = ("fixed", "no-erasure", "full", "labelled from the start")


def evolve(
    seed: int, arm: str, writer: SumWriter, epochs: int = 3, updates: int = 200, branches: int = 2, anchor: int = 300,
    data: int = 6000,
    judge_updates: int = 700, outcomes: int = 200, rule: str = "mcnemar", adversarial: float = 0.25,
) -> dict[str, Any]:  # fmt: skip
    """One arm: ``epochs`` of ``branches`` checkpoints; between epochs challengers are trained and put to the anchor.

    A node is a checkpoint of the writer with ``outcomes`` scores of the judge. The parent of an epoch is the node with the best
    belief; a replaced judge's scores count (no-erasure), or the nodes are scored anew by the new judge (full).
    """
    items, truth = labelled(seed, anchor, "anchor")
    own, right = labelled(seed, data, "train")
    start = labelled(seed, data, "train") if arm == "labelled from the start" else biased(seed)
    first = train_judge(*start, seed, judge_updates)
    judge, config = first, PromotionConfig(rule=rule)
    pool = np.zeros((0, T), np.int64)
    nodes: list[SumWriter] = [writer]
    scores: list[tuple[int, SumChecker]] = []

    def score(node: SumWriter, at: int) -> tuple[int, SumChecker]:
        rng = generator(seed, "outcomes", at)
        return int(accepts(judge, node.write(tasks(outcomes, rng), rng)[0]).sum()), judge

    def belief(s: int) -> float:
        return float(best_belief(s, outcomes - s))

    scores.append(score(writer, 0))
    log: list[dict[str, Any]] = []
    start_accuracy = float((accepts(first, items) == truth).mean())
    replaced = 0
    for epoch in range(epochs):
        if epoch and arm in ("no-erasure", "full"):
            pool = np.vstack([_fooled(seed, epoch, judge, nodes[-1]), pool])
            judge, took_over = _challenged(seed, epoch, judge, pool, items, truth, own, right, config, adversarial, judge_updates)
            replaced += took_over
            if took_over and arm == "full":
                scores = [score(node, at) for at, node in enumerate(nodes)]
        parent = max(range(len(nodes)), key=lambda i: (belief(scores[i][0]), i))
        here = nodes[parent]
        for branch in range(branches):
            here = improve(here, writer, judge, seed, epoch * branches + branch, updates // branches)
            nodes.append(here)
            scores.append(score(here, len(nodes) - 1))
        log.append({"epoch": epoch, "parent": parent, **measured(here, judge, seed)})
    best = max(range(len(nodes)), key=lambda i: (belief(scores[i][0]), i))
    return {
        "end": measured(nodes[best], judge, seed),
        "log": log,
        "replaced": replaced,
        "judge": [start_accuracy, float((accepts(judge, items) == truth).mean())],
        "by the first judge": measured(nodes[best], first, seed)["acceptance"],
    }


def _fooled(seed: int, epoch: int, judge: SumChecker, writer: SumWriter) -> np.ndarray:
    """What the writer made that the judge accepted, without what an independent rule (here the checker) says is truly right."""
    rng = generator(seed, "pool", epoch)
    made = writer.write(tasks(1000, rng), rng)[0]
    return np.asarray(made[accepts(judge, made) & ~read(made)[0]])


def _challenged(
    seed: int, epoch: int, judge: SumChecker, pool: np.ndarray, items: np.ndarray, truth: np.ndarray, own: np.ndarray,
    right: np.ndarray,
    config: PromotionConfig, adversarial: float, updates: int,
) -> tuple[SumChecker, bool]:  # fmt: skip
    """Two challengers, trained on labelled data of their own and on the pool,
    against the incumbent on the anchor and the pool's newest."""
    most = int(adversarial * len(items))
    x, y = np.vstack([items, pool[:most]]), np.concatenate([truth, np.zeros(min(most, len(pool)), bool)])
    more = pool[most : most + 3000] if len(pool) > most else pool[:0]  # what the decision rests on is not trained on
    others = [
        train_judge(
            np.vstack([own, more]),
            np.concatenate([right, np.zeros(len(more), bool)]),
            derive_key(seed, epoch, i) % 2**31,
            updates,
        )
        for i in range(2)
    ]
    accepted = np.array([accepts(one, x) for one in others]).astype(float)
    found = decide(y, accepts(judge, x).astype(float), accepted, config)
    return (judge, False) if found.winner is None else (others[found.winner], True)


def learned(seed: int, arms: list[str], pretrain: int = 600, **more: Any) -> dict[str, Any]:
    """Every arm from the same writer, one numeric thread."""
    torch.set_num_threads(1)
    writer = first_writer(seed, pretrain)
    judge = train_judge(*biased(seed), seed, more.get("judge_updates", 700))
    found: dict[str, Any] = {"start": measured(writer, judge, seed), "parameters": sum(p.numel() for p in writer.parameters())}
    return found | {arm: evolve(seed, arm, writer, **more) for arm in arms}
