"""From attempts to grades: log-probs of both models, advantages of every step, a score for the attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.base.config import check
from ramify.base.errors import BoundaryError, UserError
from ramify.base.ids import stable_hash
from ramify.methods.implicit_advantage.algorithm import (
    DOMINATED,
    TOKEN_AGGS,
    AdvantageConfig,
    attempt_score,
    by_step,
    noise_floor,
    step_columns,
)
from ramify.model.pair import Pair
from ramify.score.confidence import token_columns
from ramify.score.trajectories import Trajectory

MAKER = "implicit-advantage"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scored:
    """An attempt with its grades."""

    trajectory: Trajectory
    columns: dict[str, np.ndarray]
    """One entry a step, (n,): see ``algorithm.step_columns``; ``truncated`` tells which steps the length limit cut into."""
    config: AdvantageConfig
    logprobs: tuple[np.ndarray, np.ndarray]
    """float32 (T,) of the row that was scored (cut from the left where it was too long), policy and reference."""
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """In a few words: `asyncio.run` writes out what a finished task returned, and thousands of arrays take their time."""
        return f"Scored({self.trajectory.id!r}, {self.trajectory.n} steps, score {self.score})"

    @property
    def graded(self) -> np.ndarray:
        """Numbers of the steps that count: all, but for those cut into unless ``keep_truncated``."""
        return np.flatnonzero(
            np.ones_like(self.columns["truncated"]) if self.config.keep_truncated else ~self.columns["truncated"]
        )

    def values(self, token: str | None = None) -> np.ndarray:
        """Grades of the steps that count under a token aggregator, the configured one by default."""
        column: np.ndarray = self.columns[f"A_{token or self.config.token}"][self.graded]
        return column

    @property
    def steps(self) -> np.ndarray:
        """Grades of the steps that count, in order."""
        return self.values()

    @property
    def score(self) -> float | None:
        """The attempt's score; None where no step counts."""
        return attempt_score(self.values(), self.config.step)

    def to_json(self, policy: str = "", reference: str = "") -> dict[str, Any]:
        """The score record of section 3.6; every token aggregator is kept, so that a choice among them needs no model."""
        c, t = self.columns, self.trajectory
        names = ["n_tokens", *(f"A_{kind}" for kind in TOKEN_AGGS), "logp_theta", "logp_ref", "truncated"]
        names += [name for name in ("confidence", "certainty") if name in c]
        steps: list[dict[str, Any]] = [{"i": i} | {name: c[name][i].item() for name in names} for i in range(t.n)]
        for step, action in zip(steps, t.actions, strict=False):
            step["action"] = action
        for step, node in zip(steps, t.nodes, strict=False):
            step["node"] = node
        return {
            "trajectory_id": t.id,
            "task_id": t.task,
            "policy": policy,
            "reference": reference,
            "beta": self.config.beta,
            "order": self.config.order,
            "token_agg": self.config.token,
            "step_agg": self.config.step,
            "keep_truncated": self.config.keep_truncated,
            "steps": steps,
            "score": self.score,
            "decisions": stable_hash("decisions", t.task, t.tokens[t.step >= 0].tobytes()),
            "reward": t.reward,
            "success": t.success,
            "warnings": list(self.warnings),
        }


class AdvantageScorer:
    """Scores attempts with a pair of models; attempts that carry log-probs of both need none (``pair=None``).

    ``options`` are fields of ``AdvantageConfig``: ``AdvantageScorer(pair, token="sum", step="mean").score(attempt)``. ``noise_rows``
    attempts are scored twice to measure rounding; steps whose grade lies below three deviations of it then carry a warning.
    """

    def __init__(self, pair: Pair | None, config: AdvantageConfig | None = None, *, noise_rows: int = 0, **options: Any) -> None:
        self.pair = pair
        self.config = config or check(AdvantageConfig, options)
        self.noise_rows = noise_rows

    def score(self, attempt: Trajectory) -> Scored:
        """Grade one attempt. Not inside a running event loop: there, ``await score_all([attempt])``."""
        return self.score_many([attempt])[0]

    def score_many(self, attempts: Sequence[Trajectory]) -> list[Scored]:
        """Grade attempts in batches; each result is that of the attempt alone but for rounding. See :meth:`score_all`."""
        return asyncio.run(self.score_all(attempts))

    async def score_all(self, attempts: Sequence[Trajectory]) -> list[Scored]:
        """Grade attempts. Raises UserError naming the attempt and token where a log-prob is no finite number, and what models raise."""
        rows = [attempt.tokens[-self.config.max_length :] for attempt in attempts]
        policy, reference = await self._logprobs(attempts, rows)
        steps = [self._graded(a, p, r) for a, p, r in zip(attempts, policy, reference, strict=True)]
        ends = np.cumsum([0, *(attempt.n for attempt in attempts)])  # one table over the steps of all attempts, cut apart below
        flat = [np.where(step >= 0, step + start, -1) for step, start in zip(steps, ends, strict=False)] or [
            np.zeros(0, np.int64)
        ]
        first, second = (np.concatenate([np.zeros(0), *side]) for side in (policy, reference))
        table = step_columns(first, second, np.concatenate(flat), int(ends[-1]), self.config)
        scored = []
        for i, attempt in enumerate(attempts):
            columns = {name: column[ends[i] : ends[i + 1]] for name, column in table.items()}
            lost = attempt.step[: len(attempt.tokens) - len(rows[i])]
            columns["truncated"] = np.bincount(lost[lost >= 0], minlength=attempt.n) > 0
            scored.append(Scored(attempt, columns, self.config, (policy[i], reference[i]), tuple(self._warnings(columns))))
        return scored

    def score_each(self, attempts: Sequence[Trajectory], sure: bool = False) -> tuple[list[Scored], list[str]]:
        """Grade attempts and, one sentence each, those a model failed on (too long for it, a server's fault): the others go on.

        ``sure`` adds how sure the policy was of each step (``confidence``, ``certainty``), for the baselines.
        """

        async def go() -> tuple[list[Scored], list[str]]:
            try:
                return await self._with_confidence(attempts, sure), []
            except BoundaryError:
                pass
            done, failed = [], []
            for attempt in attempts:  # one of them broke the batch: find it
                try:
                    done += await self._with_confidence([attempt], sure)
                except BoundaryError as error:
                    failed.append(f"attempt '{attempt.id}': {error}")
            return done, failed

        return asyncio.run(go())

    async def _with_confidence(self, attempts: Sequence[Trajectory], sure: bool) -> list[Scored]:
        if not sure or self.pair is None:
            return await self.score_all(attempts)
        rows = [attempt.tokens[-self.config.max_length :] for attempt in attempts]
        tokens = await token_columns(self.pair.policy.model(), rows)
        scored = await self.score_all(attempts)
        for attempt, found, own in zip(attempts, tokens, scored, strict=True):
            step = attempt.step[len(attempt.tokens) - len(own.logprobs[0]) :]
            own.columns.update({name: by_step(values, step, attempt.n, "mean") for name, values in found.items()})
        return scored

    async def _logprobs(
        self, attempts: Sequence[Trajectory], rows: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        stored = [(a.policy_logprobs, a.reference_logprobs) for a in attempts]
        missing = [i for i, (p, r) in enumerate(stored) if p is None or r is None]
        if missing and self.pair is None:
            raise UserError(f"attempt '{attempts[missing[0]].id}' stores no log-probs of both models, and no pair was given")
        found: list[tuple[Any, Any]] = [
            (None, None) if p is None or r is None else (p[-len(row) :], r[-len(row) :])
            for (p, r), row in zip(stored, rows, strict=True)
        ]
        if missing and self.pair is not None:
            both = await self.pair.logprobs([rows[i] for i in missing], self.noise_rows)
            for i, p, r in zip(missing, *both, strict=True):
                found[i] = (p, r)
        return [p for p, _ in found], [r for _, r in found]

    def _graded(self, attempt: Trajectory, policy: np.ndarray, reference: np.ndarray) -> np.ndarray:
        """Which step each token of the scored row counts to, (T,). Raises UserError where a log-prob of one is no finite number."""
        cut = len(attempt.tokens) - len(policy)
        step = attempt.step[cut:].copy()
        if not self.config.keep_special and self.pair is not None:
            step[np.isin(attempt.tokens[cut:], list(self.pair.special))] = -1
        step[:1] = -1  # the first token of a row has nothing before it
        for name, values in (("policy", policy), ("reference", reference)):
            bad = np.flatnonzero((step >= 0) & ~np.isfinite(values))
            if len(bad):
                at = int(bad[0])
                raise UserError(
                    f"attempt '{attempt.id}': token {cut + at} (id {int(attempt.tokens[cut + at])}, step {int(step[at])}) has the "
                    f"log-prob {float(values[at])} under the {name}, so its ratio is no number"
                )
        return step

    def _warnings(self, columns: dict[str, np.ndarray]) -> list[str]:
        notes: list[tuple[np.ndarray, Callable[[int], str]]] = [
            (columns["truncated"], lambda k: f"{k} steps were cut into by max_length = {self.config.max_length}"),
            (columns["n_tokens"] == 0, lambda k: f"{k} steps have no token and grade 0"),
            (
                (columns["n_tokens"] > 2) & (columns["top_share"] > DOMINATED),
                lambda k: f"{k} steps are one token's doing (over half of |A|)",
            ),
        ]
        if self.pair is not None and self.pair.noise:
            floor = noise_floor(columns["n_tokens"], self.pair.noise, self.config.beta)
            low = (np.abs(columns["A_sum"]) < floor) & (columns["n_tokens"] > 0)
            notes.append((low, lambda k: f"{k} steps lie below the noise floor of rounding"))
        return [say(int(where.sum())) for where, say in notes if where.any()]


def __getattr__(name: str) -> Any:
    if name == "app":
        from ramify.methods.implicit_advantage.verbs import app

        return app
    raise AttributeError(name)
