"""Pure functions of kernel-search: roofline, what counts as a gain, reward, and the tree of candidates.

Sections are those of docs/methods/kernel-search-evidence.md, which follows arXiv 2606.26453;
constants that the paper does not give are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.stats.intervals import mean_t

S_LOW, S_HIGH = 1 / 16, 64.0
"""Speed-ups at which the reward is 0.05 and 1."""
LEAST_GAIN = 1.03
"""A speed-up whose lower bound does not exceed this is not a gain."""
NOISE = 0.2
"""Relative spread of the reference's own times above which nothing is ranked."""
Class = Literal["compute", "memory", "mixed", "latency", "launch", "unknown"]

EXPLORATION = 0.7
"""Weight of the bound in the choice of a node: half of UCB1's for rewards between 0 and 1, as a search has tens of candidates."""
WIDENING = 2.0
"""A node that is faster than its parent may have ceil(this * sqrt(visits)) children; one that is not, half of it."""
EACH = 2
"""Candidates of one expansion: what the second finding asks for is tried beside the first's."""


class KernelSearchConfig(Config):
    """How candidates are chosen."""

    BASIC = "evals seconds algo proposer seed"

    evals: int = Field(40, ge=1, le=100_000)
    """Candidates to build, check and time."""
    seconds: float = Field(600.0, gt=0)
    """No candidate is begun after so many seconds; the same command then continues."""
    algo: Literal["mcts", "greedy", "best-of"] = "mcts"
    """mcts: the tree of section 3.9; greedy: always from the best correct one; best-of: always from the original."""
    proposer: str = "transforms"
    """transforms (no model), transforms:blind (they ignore findings),
    or a model by name that writes candidates, such as chat:MODEL@URL."""
    seed: int = Field(0, ge=0)
    """Decides what is proposed, and the inputs."""
    pairs: int = Field(10, ge=4, le=1000)
    """Pairs of timed batches, reference and candidate in turn."""
    batch: float = Field(0.02, gt=0, le=10)
    """Least processor seconds of a timed batch."""
    memory: str = ""
    """File of JSON lines that remembers, over searches, which transform helped which finding; empty: none."""
    library: str = ""
    """Folder of source code: accepted kernels are kept in it and tried first on a like task,
    a model is shown like code of it; empty: none."""


# -- roofline (section 3.3)
# ---------------------------------------------------------------------------------


def attainable(intensity: float, peak: float, bandwidth: float) -> float:
    """Flops per second that an operation of this intensity (flops/byte) can reach: min(peak, intensity * bandwidth)."""
    return min(peak, intensity * bandwidth)


def classify(intensity: float | None, peak: float, bandwidth: float, overhead: float = 0.0) -> Class:
    """The class of an operation (section 3.3): ``overhead`` is the share of a call that is calling.

    ``launch`` where overhead >= 0.2; ``mixed`` within a factor of 2 of the ridge; ``unknown`` without an intensity.
    """
    if overhead >= 0.2:
        return "launch"
    if intensity is None or peak <= 0 or bandwidth <= 0:
        return "unknown"
    ridge = peak / bandwidth
    kind: Class = "mixed" if 0.5 * ridge <= intensity <= 2 * ridge else "compute" if intensity > ridge else "memory"
    return kind


# -- what counts as a gain (section 3.8)
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gain:
    """A speed-up measured in pairs."""

    speedup: float
    """Median of reference time / candidate time over the pairs; of several rounds the geometric mean of their medians."""
    low: float
    high: float
    """95 % interval: bootstrap over the pairs of one round, Student over the rounds."""
    noise: float
    """Relative spread of the reference's own times: 1.4826 * MAD / median."""
    pairs: int
    reference: float
    candidate: float
    """Median seconds a call."""
    rounds: int = 1
    """Times that both were started afresh; above 1 the interval is over them."""

    @property
    def ranked(self) -> bool:
        """The times are quiet enough to compare candidates."""
        return self.noise <= NOISE

    @property
    def gains(self) -> bool:
        """It is faster: the lower bound exceeds 1.03, and the times are quiet enough."""
        return self.ranked and self.low > LEAST_GAIN


def paired_gain(reference: Sequence[float], candidate: Sequence[float], rng: np.random.Generator, samples: int = 2000) -> Gain:
    """The gain of times in pairs, shape (P,) each, seconds a call.
    Raises ValueError unless there are as many of both, at least one, above 0."""
    a, b = np.asarray(reference, float), np.asarray(candidate, float)
    if a.shape != b.shape or not a.size or min(a.min(), b.min()) <= 0:
        raise ValueError("times come in pairs, and are above 0")
    ratios = np.log(a / b)
    picks = rng.integers(0, len(ratios), (samples, len(ratios)))
    low, high = np.quantile(np.median(ratios[picks], axis=1), [0.025, 0.975])
    middle = float(np.median(a))
    noise = 1.4826 * float(np.median(np.abs(a - middle))) / middle
    return Gain(math.exp(float(np.median(ratios))), math.exp(low), math.exp(high), noise, len(a), middle, float(np.median(b)))


def gain_of_rounds(rounds: Sequence[Gain], control: Sequence[Gain]) -> Gain:
    """One gain of several that were measured in fresh processes each,
    over that of the original in the candidate's place (``control``).

    Student interval of the mean difference of log speed-ups, both of shape (R,), R >= 2. Where a process's memory comes to lie
    makes the same code faster or slower by a tenth and more for as long as the process lives (Mytkowicz et al. 2009), so the
    batches of one pair of processes do not show what the next pair would; and the place of the candidate, which starts last, is
    itself not neutral. Raises ValueError below two rounds, or where the two differ in length.
    """
    logs = [math.log(each.speedup / same.speedup) for each, same in zip(rounds, control, strict=True)]
    low, high = mean_t(logs)
    noise, reference, candidate = (
        float(np.median([getattr(each, name) for each in rounds])) for name in ("noise", "reference", "candidate")
    )
    return Gain(
        math.exp(float(np.mean(logs))),
        math.exp(low),
        math.exp(high),
        noise,
        sum(each.pairs for each in rounds),
        reference,
        candidate,
        len(rounds),
    )


def reward(speedup: float | None) -> float:
    """0 of a candidate that fails the wall (None); else 0.05 + 0.95 * ln(s / s_low) / ln(s_high / s_low), clipped (section
    3.9)."""
    if speedup is None or not speedup > 0:
        return 0.0
    return 0.05 + 0.95 * min(1.0, max(0.0, math.log(speedup / S_LOW) / math.log(S_HIGH / S_LOW)))


def hit_rate(hits: int, tries: int, prior: tuple[float, float] = (1.0, 4.0)) -> float:
    """Mean of the Beta posterior of a tool's hits (a transform of its findings gained)."""
    return (prior[0] + hits) / (prior[0] + prior[1] + tries)


# -- the tree (section 3.9)
# -----------------------------------------------------------------------------------------------------------


@dataclass
class CandidateNode:
    """A node of the tree: one build."""

    number: int
    parent: int | None
    key: str
    """Hash of its code."""
    speedup: float | None
    """Lower bound of the speed-up over the original; None where it failed the wall."""
    how: str = ""
    """The transform, or who wrote it."""
    visits: int = 0
    total: float = 0.0
    best: float = 0.0
    children: list[int] = field(default_factory=list)
    pruned: str = ""
    """Why nothing more is tried from here."""
    tried: int = 0
    """Proposals made from here, those that were transpositions included."""

    @property
    def correct(self) -> bool:
        """It passed the wall."""
        return self.speedup is not None


class CandidateTree:
    """Candidates by number, the original first. ``add`` and ``backup`` change it; the rest reads."""

    def __init__(
        self,
        key: str,
        algo: str = "mcts",
        score: Callable[[float | None], float] | None = None,
    ) -> None:
        """``score`` replaces :func:`reward`."""
        self.algo, self.score = algo, score or reward
        self.nodes = [CandidateNode(0, None, key, 1.0, "the original")]
        self.known = {key: 0}
        self.backup(0)

    def allowed(self, number: int) -> int:
        """Children that a node may have at its visits."""
        node = self.nodes[number]
        if not node.correct:
            return 1
        parent = self.nodes[node.parent].speedup if node.parent is not None else None
        faster = node.parent is None or (node.speedup or 0) > (parent or 0)
        kappa = WIDENING if faster else WIDENING / 2
        return math.ceil(kappa * math.sqrt(max(1, node.visits)) - 1e-9)

    def value(self, number: int, parent: int) -> float:
        """The bound by which a child is chosen: half its mean, half its best, and exploration."""
        node, above = self.nodes[number], self.nodes[parent]
        visits = max(1, node.visits)
        return 0.5 * node.total / visits + 0.5 * node.best + EXPLORATION * math.sqrt(math.log(max(1, above.visits)) / visits)

    def select(self) -> int | None:
        """The node to expand next; None where all is pruned."""
        if self.algo == "best-of":
            return None if self.nodes[0].pruned else 0
        if self.algo == "greedy":
            at = self.best
            return None if self.nodes[at].pruned else at
        while not self.nodes[0].pruned:
            number = 0
            while True:
                node = self.nodes[number]
                if len(node.children) < self.allowed(number) and node.tried >= 0:
                    return number
                open_ones = [child for child in node.children if not self.nodes[child].pruned]
                if not open_ones:
                    if node.tried >= 0:
                        return number  # nothing below is left, so it is widened
                    node.pruned = node.pruned or "nothing is left to propose"
                    break
                number = max(open_ones, key=lambda child: (self.value(child, number), -child))
        return None

    def spent(self, number: int) -> None:
        """Nothing more can be proposed from this node."""
        self.nodes[number].tried = -1
        if self.algo != "mcts" or all(self.nodes[child].pruned for child in self.nodes[number].children):
            self.nodes[number].pruned = self.nodes[number].pruned or "nothing is left to propose"

    def add(self, parent: int, key: str, speedup: float | None, how: str, roof: float = 0.0) -> int:
        """A candidate and its backup; ``roof`` is the fraction of the roof that it reaches. Returns its number."""
        number = len(self.nodes)
        self.nodes.append(CandidateNode(number, parent, key, speedup, how))
        self.known.setdefault(key, number)
        self.nodes[parent].children.append(number)
        self.backup(number)
        if roof >= 0.9:
            self.nodes[number].pruned = "at 0.9 of the roof"
        self._prune(number)
        return number

    def backup(self, number: int) -> None:
        """Add a node's reward to itself and to all above it."""
        gained = self.score(self.nodes[number].speedup)
        for node in self.line(number):
            node.visits += 1
            node.total += gained
            node.best = max(node.best, gained)

    def line(self, number: int) -> Iterator[CandidateNode]:
        """A node and those above it, upwards."""
        at: int | None = number
        while at is not None:
            yield self.nodes[at]
            at = self.nodes[at].parent

    def _prune(self, number: int) -> None:
        """Three failures in a row, or three levels without a gain of 3 %, end a branch."""
        line = list(self.line(number))[:-1]
        if len(line) >= 3 and not any(node.correct for node in line[:3]):
            line[2].pruned = line[2].pruned or "three failures in a row"
            for node in line[:2]:
                node.pruned = node.pruned or "three failures in a row"
        if len(line) >= 4:
            before = line[3].speedup or 0.0
            if all(node.correct and (node.speedup or 0) <= before * LEAST_GAIN for node in line[:3]):
                line[0].pruned = line[0].pruned or "three levels without a gain"

    @property
    def best(self) -> int:
        """The fastest candidate that passed the wall, the earliest of equals."""
        return max((node for node in self.nodes if node.correct), key=lambda node: (node.speedup or 0, -node.number)).number
