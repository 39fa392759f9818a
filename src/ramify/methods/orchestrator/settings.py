"""Settings of the verbs, and the records of a router: apart from what they set, so that the verbs can be listed without torch."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from ramify.base.budget import Budget
from ramify.base.config import Config
from ramify.methods.orchestrator.algorithm import STEPS
from ramify.model.protocol import Sampling

POSITION = -2
"""Which token's hidden state is read: the last but one; the last gives less [T]."""


class GrpoConfig(Config):
    """Training a composer (section 3.7)."""

    updates: int = Field(20, ge=1)
    """Updates."""
    questions: int = Field(4, ge=1)
    """Questions of an update."""
    group: int = Field(16, ge=2)
    """Plans for each question."""
    warm: int = Field(0, ge=0)
    """Supervised steps on random plans of sensible shape before;
    without, a model that rarely writes several steps ends at one."""
    lr: float = Field(1e-6, gt=0)
    """Learning rate, cosine with 3 % of warm-up."""
    temperature: float = Field(1.0, gt=0)
    """Of the plans."""
    max_tokens: int = Field(1024, ge=1)
    """Longest plan."""
    shots: bool = True
    """Show worked examples in the prompt; a model too small for them learns the form by the warm start."""
    subset: int = Field(0, ge=0)
    """Show a random choice of so many workers with each question, so that the pool may be restricted later; 0: all."""


class EvolveRouterConfig(Config):
    """Evolution of a router; defaults as in TRINITY."""

    generations: int = Field(60, ge=1)
    """Generations."""
    size: int = Field(0, ge=0)
    """Candidates of a generation; 0: 4 + 3 ln n, rounded up."""
    episodes: int = Field(16, ge=1)
    """Episodes of a candidate in a generation."""
    sigma: float = Field(0.0, ge=0)
    """First step size; 0: .03 of a router that was not trained, else 5 times the root mean square of its head."""
    turns: int = Field(STEPS, ge=1)
    """Most turns of a conversation, of a router with roles."""
    check: int = Field(64, ge=2)
    """Episodes on fresh samples on which the result must beat the start to be kept."""
    temperature: float = Field(0.7, ge=0)
    """Of the workers."""
    max_tokens: int = Field(1024, ge=1)
    """Longest reply of a worker."""


class RouterFitConfig(Config):
    """The first stage: soft targets (section 3.3)."""

    lr: float = Field(1e-3, gt=0)
    """Learning rate of AdamW, of head and scales."""
    steps: int = Field(400, ge=1)
    """Steps."""
    batch: int = Field(32, ge=1)
    """Texts of a step where singular values are tuned; the head alone takes all at once."""


@dataclass(frozen=True)
class RouterFit:
    """What the first stage came to: divergence from the targets in nats, before and after, over tasks that tell workers apart."""

    tasks: int
    tasks_left_out: int
    kl: float
    kl_before: float


@dataclass(frozen=True)
class RouterRecord:
    """What a router is besides its numbers: its router.json."""

    workers: tuple[str, ...]
    hidden_pos: int
    svf: tuple[str, ...]
    roles: bool
    backbone: str
    backbone_hash: str
    history: tuple[str, ...]
    """What trained it, in order."""


class CallConfig(Config):
    """How workers are asked."""

    temperature: float = Field(0.7, ge=0)
    """Of the workers' replies."""
    max_tokens: int = Field(1024, ge=1)
    """Longest reply."""

    @property
    def sampling(self) -> Sampling:
        """As workers take it."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)


class SpendConfig(Config):
    """What work may cost, and what decides its samples."""

    max_usd: float | None = Field(None, ge=0)
    """Stop before a call that could exceed it (replies counted at --max-tokens)."""
    max_calls: int | None = Field(None, ge=1)
    """Most calls of workers."""
    seed: int = 0
    """Decides every sample."""

    @property
    def budget(self) -> Budget:
        """Of one call of the verb."""
        return Budget({"money": self.max_usd, "calls": None if self.max_calls is None else float(self.max_calls)})


JUDGE = "Says how good an answer is, 0 to 1: exact, number, cmd:check.sh, FILE.py:FUNCTION, judge:MODEL#PROMPT."


class CollectConfig(CallConfig, SpendConfig):
    """Settings of `collect`."""

    judge: str = Field("exact", description=JUDGE)
    n: int = Field(8, ge=1)
    """Repeats of every worker on every task; headroom needs 5."""


class AnswerConfig(CallConfig, SpendConfig):
    """How a router or a composer answers."""

    rounds: int = Field(0, ge=0)
    """Further workflows a composer may write when it has seen its answer."""
    max_steps: int = Field(STEPS, ge=1, le=20)
    """Most steps of a workflow."""
    shots: bool = True
    """Show a composer worked examples."""


class CompareConfig(AnswerConfig):
    """Settings of `eval`."""

    judge: str = Field("exact", description=JUDGE)
    best: str = ""
    """The best single worker; default: by --table, else the first that is not excluded."""


class RouterTraining(RouterFitConfig):
    """`train router`: soft targets of a table."""

    backbone: str = "builtin"
    """Small language model that reads the transcript: builtin or hf:DIR."""
    hidden_pos: int = POSITION
    """Token whose hidden state is read; negative ones count from the end."""
    svf: list[str] = Field(default_factory=list)
    """Tune the singular values of matrices with one of these in their name."""
    roles: bool = False
    """Also choose a role each turn (Thinker, Worker, Verifier); only `train evolved` trains it."""
    holdout: float = Field(0.2, ge=0, le=0.9)
    """Share of tasks kept back to measure on."""
    scorer: str | None = None
    """Whose scores of the run count; default: the only one."""


class RouterEvolution(EvolveRouterConfig):
    """`train evolved`: whole trajectories."""

    env: str | None = None
    """Environment to play whole episodes in, the router choosing each turn; or --judge."""
    count: int = Field(32, ge=1)
    """Tasks of an environment to play."""


class ComposerTraining(GrpoConfig):
    """`train composer`: GRPO with live workers."""

    max_steps: int = Field(STEPS, ge=1, le=20)
    """Most steps of a workflow."""


class OrchestratorTraining(SpendConfig):
    """Settings of `train`, a section for each that can be trained."""

    judge: str | None = Field(None, description=JUDGE + " Of `evolved` (or an environment) and `composer` (default: exact).")
    router: RouterTraining = RouterTraining()
    evolved: RouterEvolution = RouterEvolution()
    composer: ComposerTraining = ComposerTraining()
