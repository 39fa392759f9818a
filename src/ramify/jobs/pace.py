"""How long ``improve`` takes, from what its trial took."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramify.engine.adapters import Adapter
from ramify.engine.local import LocalModel
from ramify.jobs import room
from ramify.jobs.results import Evaluation
from ramify.jobs.settings import ImproveConfig
from ramify.train.batch import Row
from ramify.train.loop import Trainer


@dataclass(frozen=True)
class Pace:
    """Seconds of the parts of a job, and of what they depend on."""

    sample: float
    """Of one sampled token."""
    step: float
    """Of one step of training, whatever it trains on."""
    token: float
    """Of one pass over one trained token."""
    passes: int
    """Over the tokens of an update."""
    steps: int
    """Of an update."""
    share: float
    """Of the sampled tokens that are trained on."""
    shown: float
    """Tokens of a training row for each that is trained on."""
    keep: float = 0.0
    """Of keeping one checkpoint."""
    load: float = 0.0
    """Of loading the agent."""
    weigh: float = 0.0
    """Of measuring what was lost."""

    @classmethod
    def measured(cls, seen: Evaluation, rows: Sequence[Row], trainer: Trainer, losses: Mapping[str, float]) -> Pace:
        """From a trial: its episodes, and steps on all of its ``rows`` and on a quarter of them, which change the agent."""
        config = trainer.config
        trainer.config = config.model_copy(update={"epochs": 1, "minibatches": 1})
        took, tokens = [], []
        for part in (rows[: max(1, len(rows) // 4)], rows):
            began = time.monotonic()
            trainer.update(part, losses)
            took.append(time.monotonic() - began)
            tokens.append(sum(int(row.mask[1:].sum()) for row in part))
        trainer.config = config
        more = tokens[1] - tokens[0]
        token = max(0.0, took[1] - took[0]) / more if more else 0.0
        return cls(
            sample=seen.seconds / max(1, seen.tokens),
            step=max(0.0, took[1] - token * tokens[1]),
            token=token,
            passes=config.epochs,
            steps=config.epochs * config.minibatches,
            share=max(seen.success, room.SHARE),
            shown=sum(len(row.tokens) for row in rows) / max(1, tokens[1]),
        )

    def seconds(self, config: ImproveConfig, arms: int, played: float) -> float:
        """Of a job with so many ``arms`` and ``played`` tokens of evaluations."""
        sampled = arms * config.tokens
        training = arms * config.updates * self.steps * self.step + sampled * self.share * self.passes * self.token
        loads = 1 + arms + (6 if config.changes else 0)
        kept = arms * config.updates * (self.keep + self.weigh) + loads * self.load
        return (sampled + played) * self.sample + training + kept

    def memory(self, model: LocalModel, config: ImproveConfig, adapter: Adapter | None, loaded: int) -> room.NeededMemory:
        """What the job takes."""
        return room.needed(model, config, adapter, loaded, self.shown, self.share)
