"""Assertions for tests of components and runs, each registered as kind ``assertion``; methods and plug-ins register their own.

They raise AssertionError with one sentence on what was observed. Nothing heavy is imported before an assertion is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.base import codec, registry
from ramify.base.errors import UserError, nearest
from ramify.base.files import reason
from ramify.base.registry import register
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.testing import conformance

if TYPE_CHECKING:
    from ramify.methods.implicit_advantage.records import ScoreRecord
    from ramify.trace.db import Run


@register("assertion", "conforms")
def assert_conforms(kind: str, part: Any, **options: Any) -> None:
    """Assert that ``part``, an object or a registered name,
    passes its kind's conformance battery; ``options`` are the battery's."""
    if not isinstance(kind, str):
        raise UserError(f"a kind is named, as in assert_conforms('env', ...), and not {kind!r:.60}")
    kind = conformance.known_kind(kind)
    found = conformance.check(kind, registry.named(kind, part) if isinstance(part, str) else part, **options)
    if found:
        listed = "; ".join(f"{problem.check}: {problem.message}" for problem in found)
        raise AssertionError(f"this {kind} does not conform ({plural(len(found), 'problem')}): {listed}")


@register("assertion", "same-tree")
def assert_same_tree(left: Run | Path | str, right: Run | Path | str) -> None:
    """Assert that two runs, open or given as folders, hold the same trees:
    the same samples, in whatever order they were added."""
    from ramify.trace.db import Run

    with ExitStack() as stack:
        runs = []
        for run in (left, right):
            if not isinstance(run, (Run, Path, str)):
                raise UserError(f"a run is an open one or a folder, and not {run!r:.60}")
            try:
                runs.append(run if isinstance(run, Run) else stack.enter_context(Run.open(run)))
            except OSError as error:  # a name no folder can have
                raise UserError(f"cannot open the run {str(run)!r:.80}: {reason(error)}") from None
        names = [{info.name for info in run.trees()} for run in runs]
        if not any(names):
            raise AssertionError("neither run holds a tree, so there is nothing to compare")
        if names[0] != names[1]:
            alone = sorted(names[0] ^ names[1])
            raise AssertionError(f"in one run only: {plural(len(alone), 'tree')}, the first is {alone[0]!r:.80}")
        for name in sorted(names[0]):
            one, other = (run.tree(name) for run in runs)
            if one.hash != other.hash:
                node = next(
                    node
                    for tree, rest in ((one, other), (other, one))
                    for node in tree.nodes.values()
                    if node.id not in rest.nodes
                )
                which = "left" if node.id in one.nodes else "right"
                raise AssertionError(
                    f"tree {name!r:.80} differs: only the {which} run has node {node.id} ({node.role}: {node.text[:80]!r})"
                )


@register("assertion", "success-rate")
def assert_success_rate(attempts: Iterable[Any], *, at_least: float, confidence: float = 0.95) -> None:
    """Assert with ``confidence`` that attempts succeed at a rate of ``at_least`` or more.

    ``attempts`` are those of a rollout, or booleans; unscored ones (None) are left out. The lower end of the exact one-sided
    interval of the rate (Clopper and Pearson 1934) must not lie below ``at_least``.
    """
    numbers = isinstance(at_least, (int, float)) and isinstance(confidence, (int, float))
    if not numbers or not 0 <= at_least <= 1 or not 0 < confidence < 1:
        raise UserError(f"at_least must lie in [0, 1] and confidence in (0, 1), not {at_least!r:.60} and {confidence!r:.60}")
    if not isinstance(attempts, Iterable):
        raise UserError(f"attempts are those of a rollout, or booleans, and not {attempts!r:.60}")
    from ramify.stats.intervals import clopper_pearson

    outcomes = [_outcome(attempt) for attempt in attempts]
    scored = [bool(outcome) for outcome in outcomes if outcome is not None]
    if not scored:
        raise AssertionError(f"none of {len(outcomes)} attempts was scored, so their success rate is unknown")
    low = clopper_pearson(sum(scored), len(scored), 2 * confidence - 1)[0]  # one tail of 1 - confidence
    if low < at_least:
        left_out = len(outcomes) - len(scored)
        raise AssertionError(
            f"{sum(scored)} of {len(scored)} attempts succeeded: with {confidence:.0%} confidence that is at least {low:.1%}, "
            "not "
            f"{at_least:.1%}" + (f" ({plural(left_out, 'unscored attempt')} left out)" if left_out else "")
        )


def _outcome(attempt: Any) -> bool | None:
    if attempt is not None and not isinstance(attempt, bool) and not hasattr(attempt, "outcome"):
        raise UserError(f"an attempt is one of a rollout, True, False or None, and not {attempt!r:.60}")
    outcome: bool | None = getattr(attempt, "outcome", attempt)
    return outcome


@register("assertion", "judge-agrees")
def assert_judge_agrees(
    judge: Any, anchor: Path | str, *, at_least: float, confidence: float = 0.95, truth: str | None = None
) -> None:
    """Assert with ``confidence`` that ``judge`` (one by name,
    or a judge) is right on a share of ``at_least`` or more of an anchor's items.

    ``anchor`` is a file of ``{id, artefact, label}`` or a run, as `ramify judge-evolution check` reads it. Items without an
    answer are left out; where they are more than one in twenty the assertion fails.
    """

    from ramify.score.anchor import answers, quality, read_anchor
    from ramify.score.judge import find_judge
    from ramify.stats.intervals import clopper_pearson

    numbers = isinstance(at_least, (int, float)) and isinstance(confidence, (int, float))
    if not numbers or not 0 <= at_least <= 1 or not 0 < confidence < 1:
        raise UserError(f"at_least must lie in [0, 1] and confidence in (0, 1), not {at_least!r:.60} and {confidence!r:.60}")
    items = read_anchor(Path(anchor), truth)
    found = quality(items, wait_for(answers(find_judge(judge) if isinstance(judge, str) else judge, items)))
    if 20 * found.missing > len(items) or found.accuracy is None:
        why = next(iter(found.failures.values()), "")
        raise AssertionError(f"'{found.judge}' did not answer {found.missing} of {len(items)} items of {anchor}: {why}")
    low = clopper_pearson(found.accuracy.k, found.accuracy.n, 2 * confidence - 1)[0]
    if low < at_least:
        raise AssertionError(
            f"'{found.judge}' is right on {found.accuracy} items of {anchor}: with {confidence:.0%} confidence that is at "
            f"least {low:.1%}, not {at_least:.1%}"
        )


@register("assertion", "survives")
def assert_survives(compactor: Any, rules: str | Iterable[str], *, rounds: int = 4, **options: Any) -> None:
    """Assert that ``rules`` stated in a conversation are all in the context after each of ``rounds`` compactions.

    ``compactor`` is a harness's own function over messages in OpenAI's form (``compactor`` in ramify's integrations makes one
    from those of LangChain, LangMem, inspect, the OpenAI Agents SDK and AutoGen do), one of ramify's compactors, or either of
    them wrapped by pins. ``options`` are those of :func:`ramify.methods.governance.carriage.survives`:
    ``budget``, ``history``, ``turns``, ``language``, ``seed``."""
    from ramify.methods.governance.carriage import survives

    rules = list(rules) if isinstance(rules, Iterable) and not isinstance(rules, str) else rules
    if not all(isinstance(rule, str) for rule in (rules if isinstance(rules, list) else [rules])):
        raise UserError(f"rules are a text or a list of texts, and not {rules!r:.60}")
    if not isinstance(rounds, int):
        raise UserError(f"rounds are a whole number, and not {rounds!r:.60}")
    lost = survives(compactor, rules, rounds, **options)
    if lost:
        listed = "; ".join(f"'{one.rule}' ({one.kind} in round {one.round})" for one in lost)
        raise AssertionError(f"compaction lost {plural(len(lost), 'rule')}: {listed}")


@register("assertion", "no-step-below")
def assert_no_step_below(grades: Any, floor: float, *, token: str = "sum") -> None:
    """Assert that no step of any attempt is graded below ``floor``, in nats times beta.

    ``grades`` is a run that `ramify implicit-advantage score` graded, a list of score records, or what
    its ``AdvantageScorer`` returned. Where nothing was graded the assertion fails: it would show nothing.
    """
    from ramify.methods.implicit_advantage.algorithm import TOKEN_AGGS
    from ramify.methods.implicit_advantage.run import read_scores

    if token not in TOKEN_AGGS:
        raise UserError(f"there is no token aggregator '{token}'; {nearest(token, TOKEN_AGGS)}")
    if isinstance(grades, (str, Path)):
        grades = read_scores(Path(grades))
    if not isinstance(floor, (int, float)):
        raise UserError(f"floor is a number of nats times beta, and not {floor!r:.60}")
    records = [_record(grade) for grade in (grades if _listed(grades) else [grades])]
    steps = [(record, step) for record in records for step in record.counted]
    graded = [step.grade(token) for _, step in steps]
    if not steps:
        raise AssertionError("no step was graded, so the lowest grade is unknown")
    record, worst = steps[graded.index(min(graded))]
    low = [grade for grade in graded if grade < floor]
    if low:
        action = f" ({worst.action[:80]!r})" if worst.action else ""
        raise AssertionError(
            f"{len(low)} of {len(steps)} steps are graded below {floor:g}; the lowest is step {worst.i}{action} of attempt "
            f"{record.trajectory_id!r:.80} with {min(graded):.3f}"
        )


def _record(grade: Any) -> ScoreRecord:
    from ramify.methods.implicit_advantage.records import ScoreRecord
    from ramify.methods.implicit_advantage.run import GradedAttempt

    if isinstance(grade, GradedAttempt):
        return grade.record()
    if not isinstance(grade, (dict, ScoreRecord)):
        raise UserError(f"grades are a run, score records, or what an AdvantageScorer returned, and not {grade!r:.60}")
    return codec.from_json(ScoreRecord, grade, "a score record")


def _listed(grades: Any) -> bool:
    return isinstance(grades, Iterable) and not isinstance(grades, dict)
