"""What the attempts that are there say, where nothing is run again: no counterfactual."""

from __future__ import annotations

from dataclasses import replace

from ramify.jobs.why import sentences
from ramify.jobs.why.alternatives import alternatives, words
from ramify.jobs.why.answer import Why
from ramify.jobs.why.attempts import AskedAttempt
from ramify.jobs.why.records import BrokenRule, Chance, StepChance
from ramify.stats.drops import Counts
from ramify.stats.evidence import EvidenceRow, each_against

NOTE = "Recorded attempts only: this is not a counterfactual"


def recorded(case: AskedAttempt, level: float, broken: tuple[BrokenRule, ...] = ()) -> Why:
    """The step after which attempts from one state did worst (of a success: best), corrected over the steps.

    Where none stands out, of a failure the step that breaks a rule which at most ``level`` of the successful logs break.
    """
    took = {t: _parted(case, t) for t in range(1, case.trace.length + 1)}
    pairs = {str(t): ((rest.k, rest.n), (same.k, same.n)) for t, (same, rest) in took.items() if same.n and rest.n}
    rows = {int(row.intervention): row for row in each_against(pairs)} if pairs else {}
    sign = 1 if case.view.success else -1
    whole = Why(
        tree=case.view.info.name,
        attempt=case.view.leaf,
        success=bool(case.view.success),
        verdict="none",
        headline="",
        before=Chance.of(Counts.of(one.success for one in case.passing(0, case.others))),
        after=Chance.of(Counts(int(bool(case.view.success)), 1), exact=True),
        steps=tuple(_step(case, t, rows.get(t), level, sign) for t in took),
        free=len(case.others),
        counterfactual=False,
        broken=broken,
    )
    stood = [t for t, step in enumerate(whole.steps, 1) if step.stands_out]
    named = next((rule for rule in broken if rule.p <= level), None) if not whole.success else None
    if not stood and named is not None:
        headline = sentences.by_rule(named, NOTE)
        return replace(whole, verdict="step", named_by="rule", node=named.node, action=named.action, headline=headline)
    if not stood:
        hint = sentences.hint(broken[0]) if broken and not whole.success else ""
        return replace(whole, headline=sentences.compared(len(rows), NOTE) + hint)
    t = max(stood, key=lambda t: (sign * rows[t].difference, -t))
    same, rest = took[t]
    others = alternatives(case, t, case.passing(t - 1, case.others))
    found = whole.at_step(t, Chance.of(same + rest), Chance.of(same), others)
    return replace(found, headline=f"{sentences.lost(found, (same + rest).n)} {NOTE}.")


def _parted(case: AskedAttempt, t: int) -> tuple[Counts, Counts]:
    """Successes of those that did the same at step ``t``, and of those that did something else there."""
    own = words(case.trace.actions[t - 1])
    there = [(one.first[case.keys[t - 1]], one.success) for one in case.passing(t - 1, case.others)]
    same = Counts.of(success for step, success in there if step is not None and words(step.action) == own)
    return same, Counts.of(success for step, success in there if step is not None and words(step.action) != own)


def _step(case: AskedAttempt, t: int, row: EvidenceRow | None, level: float, sign: int) -> StepChance:
    ends = case.passing(t, case.others) if t < case.trace.length else []
    after = Chance.of(Counts.of(one.success for one in ends)) if ends else None
    stands = row is not None and row.p_corrected <= level and sign * row.difference > 0
    change, interval = (None, None) if row is None else (row.difference, row.difference_interval)
    where = case.replies[t - 1].node, case.trace.actions[t - 1]
    return StepChance(*where, after, change, interval, stands, case.conversation(t))
