"""The tests of a case, made with runs of the agent in its environment, and its sentences."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.waiting import wait_for
from ramify.methods.forensics import record
from ramify.methods.forensics.algorithm import awareness, forbidding, sentence_scores
from ramify.methods.forensics.case import are_doses, intervention, is_number
from ramify.methods.forensics.experiment import TestResult, absence, counterfactuals, dose_response, stacked
from ramify.methods.forensics.filtered import Filtered
from ramify.methods.forensics.found import Baseline, CaseReport, ReplyScores, SentenceMove
from ramify.methods.forensics.study import CaseRuns, Played, counted
from ramify.model.protocol import require
from ramify.rollout.fork import fork
from ramify.rollout.potential import Fixed, ForkEnd, Forks, counts_annotation, potential
from ramify.rollout.stored import task_of
from ramify.score.judge import Judge
from ramify.stats.drops import Counts
from ramify.stats.intervals import Proportion
from ramify.stats.tests import homogeneity
from ramify.trace.node import Node
from ramify.trace.path import text_between
from ramify.trace.segment import sentence_offsets


class Case(CaseRuns):
    """An open case: each test plays what it lacks, and what it found is kept in the case's run."""

    def baseline(self, n: int | None = None) -> Baseline:
        """The rate in the incident: invalid runs counted separately, runs that speak of a test too;
        pooled tasks come with a test of homogeneity."""
        runs = self.play("baseline", {}, n)
        counts, graded = counted(runs), Counter(run.tree for run in runs if run.behavior is not None)
        hits = Counter(run.tree for run in runs if run.behavior)
        found = Baseline(
            rate=Proportion.of(counts.k, counts.n),
            invalid=counts.missing,
            invalid_share=counts.missing / len(runs),
            failures=dict(Counter(run.failure for run in runs if run.failure).most_common(3)),
            awareness=awareness(counted(r for r in runs if r.aware), counted(r for r in runs if not r.aware)),
            homogeneity=homogeneity([hits[task] for task in graded], list(graded.values())),
            absence=None if counts.k else absence(counts, self.config.expect or 0.01),
        )
        record.keep(self.run, record.BASELINE, found)
        return found

    def base(self, n: int | None = None) -> Counts:
        """Counts of the baseline."""
        return counted(self.play("baseline", {}, n))

    def vary(self, field: str, values: Sequence[Any] = (), n: int | None = None) -> TestResult:
        """A dose-response over numbers of one field. Raises UserError on fewer than three doses,
        or on values that are no numbers."""
        declared = self.config.field(field)
        values = list(values) or declared.values
        if not are_doses(values):
            raise UserError(
                f"'{field}' needs at least three different numbers as doses, not {values}; for other values declare variants"
            )
        counts = [self._cell(f"{field}={value}", {field: value}, n) for value in values]
        for value, count in zip(values, counts, strict=True):
            if not count.n:
                raise UserError(
                    f"all {count.missing} runs at {field} = {value} are invalid, so it has no rate: see what `ramify forensics "
                    "run` says of "
                    "failures, or leave it out of the doses"
                )
        found = dose_response(field, values, counts)
        (kept,) = self.record([replace(found, detail=replace(found.detail, role=declared.role))])
        return kept

    def counterfactual(self, names: Sequence[str] = (), n: int | None = None) -> list[TestResult]:
        """Variants of the case against the baseline; a stack of two fields also gets its interaction."""
        names = list(names) or list(self.config.variants)
        if not names:
            raise UserError("the case declares no variants")
        changed = {name: self.config.changes(name) for name in names}
        base = self.base(n)
        arms = {name: self._cell(name, changes, n) for name, changes in changed.items()}
        found = []
        for result in counterfactuals(base, arms):
            changes = changed[result.name]
            change = intervention(self.environment, self.config, next(iter(self.task_set)), changes)
            turned = {(self.config.fields[field].role, self._lowered(field, value)) for field, value in changes.items()}
            role, lowered = turned.pop() if len(turned) == 1 else ("", False)
            detail = replace(result.detail, role=role, lowered=lowered, change=change)
            found.append(replace(result, detail=detail))
        return self.record([*found, *(self._interaction(name, base, arms[name], n) for name in names if len(changed[name]) == 2)])

    def _lowered(self, field: str, value: Any) -> bool:
        """Whether a field of numbers is set below its baseline, against the way in which roles predict."""
        before = self.config.fields[field].baseline
        return is_number(before) and is_number(value) and bool(value < before)

    def _interaction(self, name: str, base: Counts, both: Counts, n: int | None) -> TestResult:
        left, right = (self._cell(f"{field}={value}", {field: value}, n) for field, value in self.config.changes(name).items())
        return stacked(f"{name}, interaction", both, left, right, base)

    def forbid(self, name: str, judge: Judge, n: int | None = None) -> TestResult:
        """The rate of runs in which no sentence of a class is said, against the baseline.
        Raises NeedsError on a model without tokens."""
        filtered = replace(
            self.agent, model=Filtered(self.agent.model, judge, name, by=self.config.sentences, ledger=self.ledger)
        )
        runs = self.play(f"without {name}", {}, n, filtered)
        kept = [run for run in runs if run.forbid is None or not run.forbid.unfiltered]
        rejected = sum(run.forbid.rejected for run in runs if run.forbid)
        found = forbidding(self.base(n), counted(kept), rejected, len(runs) - len(kept), name=f"without {name}")
        (result,) = self.record([replace(found, detail=replace(found.detail, role="idea"))])
        return result

    def report(self) -> CaseReport:
        """Everything known of the case: baseline, tests, traces, questions, and the table of evidence."""
        return record.report(self.run, self.config)

    def _cell(self, cell: str, changes: Mapping[str, Any], n: int | None) -> Counts:
        return counted(self.play(cell, changes, n))

    def resample(self, run: Played | str, turn: int = 0, k: int = 50) -> ReplyScores:
        """Fork one reply before and after every sentence, k times each: scores, their held-out half, and the curve of rates.

        ``run`` is a run or the node it ended at; ``turn`` counts its replies from 0. Raises NeedsError where the model cannot
        continue inside a message, UserError where there is no such reply or nothing said in it.
        """
        require(self.agent.model, ("tokens", "continue"), "resampling sentences")
        leaf = self.run.find(run) if isinstance(run, str) else run.leaf
        episodes = self.episodes()
        node = record.reply_of(self.run, leaf, turn)
        last = len(node) if node.sampled is None else int(np.flatnonzero(node.sampled)[-1])
        offsets = sorted({min(offset, last) for offset in sentence_offsets(node, self.config.sentences, node.head)})
        if len(offsets) < 2:
            raise UserError(f"reply {turn} of the run that ends at {leaf} has no sentence to resample")
        task, _ = task_of(self.run, node.tree)
        verdicts: dict[int, list[bool | None]] = {}

        async def play(node: Node, offset: int, numbers: range, purpose: str) -> list[ForkEnd]:
            """Forks that were graded; an invalid one has no outcome."""
            place, n = (node.tree, task, node.id, offset), len(numbers)
            made = await fork(episodes, *place, n, start=numbers.start, purpose=purpose)
            graded = await asyncio.gather(*(self.grade("fork", episodes, attempt) for attempt in made.arm.attempts))
            verdicts[offset] = [run.behavior for run in graded]
            self.progress.at(len(verdicts))
            return list(map(ForkEnd, verdicts[offset]))

        self.progress.begin(len(offsets), 0, f"fork {k} times", "places")
        wait_for(potential(Forks(play), node, offsets, Fixed(k), "forensics"))
        found = np.array([[np.nan if v is None else float(v) for v in verdicts[offset]] for offset in offsets])
        self.run.commit()
        for i, row in enumerate(np.isfinite(found)):
            if min(row[0::2].sum(), row[1::2].sum()) < 2:
                raise UserError(
                    f"{k - row.sum()} of the {k} forks after {i} sentences of reply {turn} are invalid, and either half needs 2 "
                    "graded "
                    "ones: use more forks"
                )
        scores = sentence_scores(found)
        texts = [text_between(node, start, end).strip() for start, end in itertools.pairwise(offsets)]
        columns = (texts, scores.scores.tolist(), scores.sd.tolist(), scores.p.tolist(), scores.held_out.tolist())
        result = ReplyScores(
            leaf=leaf,
            turn=turn,
            k=k,
            rates=tuple(scores.rates.tolist()),
            sentences=tuple(SentenceMove(*row) for row in zip(*columns, strict=True)),
            order=tuple(scores.order.tolist()),
            node=node.id,
            offsets=tuple(offsets),
        )
        with self.run.transaction():
            self.run.add(*(counts_annotation(node.id, at, Counts.of(verdicts[at])) for at in offsets))
            record.keep(self.run, record.SENTENCES, result)
        return result
