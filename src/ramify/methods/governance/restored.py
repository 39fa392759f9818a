"""At each forbidden call after a dropped rule: continuations as it was, and with the rule put back into the context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ramify.base import codec
from ramify.base.errors import NeedsError, UserError
from ramify.base.ids import json_hash
from ramify.base.waiting import wait_for
from ramify.methods.governance.algorithm import LEVEL
from ramify.methods.governance.lost_rules import (
    AUDIT,
    FORKED,
    BrokenShare,
    ForkedRule,
    ForkPlace,
    LeftOutPlace,
    RestoredFork,
    RestoredRules,
    RuleAudit,
    calls_of,
)
from ramify.methods.governance.predicates import NEEDS
from ramify.methods.governance.written_rules import Rule, breaks
from ramify.rollout.attempts import Attempt
from ramify.rollout.fork import Arm, fork
from ramify.rollout.run import Episodes
from ramify.rollout.stored import by_player, named_components, open_episodes, task_of
from ramify.stats.drops import Counts
from ramify.stats.evidence import each_against
from ramify.trace.db import Run
from ramify.trace.node import Finding, Node
from ramify.trace.path import as_messages
from ramify.trace.sources import run_folder


def restored(
    source: Path,
    found: RuleAudit,
    rules: Sequence[Rule],
    n: int,
    model: str | None = None,
    env: str | None = None,
    trust: bool = False,
    begin: Callable[[int], object] = lambda whole: None,
    at: Callable[[int], object] = lambda done: None,
) -> RestoredRules:
    """Fork at every forbidden call that the audit ``found`` in the run ``source``:
    ``n`` continuations as it was, ``n`` with the rule.

    A continuation breaks the rule where any of its calls does; one that failed is left out. ``p`` is Fisher's, exact,
    ``corrected`` Holm's over the calls. Stored continuations are loaded. ``begin`` is called with the number there will be,
    ``at`` with the number ended. Where the run cannot be played, the ``verdict`` says why. Raises UserError as `ramify fork`
    does, for an unknown model or environment.
    """
    folder = run_folder(source)
    if folder is None:
        return RestoredRules(n, f"no rule was restored: {source} is not a run, so there is nothing to continue")
    by_text = {rule.text: rule for rule in rules}
    places = _places(found)
    if not places:
        return RestoredRules(n, "no rule was restored: no call is known to break a rule that compaction dropped")
    with Run.open(folder) as run:
        try:
            named_components(run, model, env)
        except UserError as error:
            return RestoredRules(n, f"no rule was restored: {error}")
        groups = by_player(run, {place.node: run.node(place.node) for place in places}.values(), model, env)
    begin(2 * n * len(places))
    done = 0

    def on_attempt(attempt: Attempt) -> None:
        nonlocal done
        done += 1
        at(done)

    counts, left = [], []
    for group in groups:
        with open_episodes(folder, group[0], model, env, trust=trust) as (episodes, _):
            episodes.on_attempt = on_attempt
            for node, place in [(node, place) for node in group for place in places if place.node == node.id]:
                try:
                    with episodes.committing():
                        counts.append((place, *_forked(episodes, node, by_text[place.rule], n)))
                except (UserError, NeedsError) as error:
                    left.append(LeftOutPlace(**vars(place), why=str(error)))
    rows = each_against({f"{i}": ((was.k, was.n), (with_rule.k, with_rule.n)) for i, (_, was, with_rule) in enumerate(counts)})
    forks = tuple(
        RestoredFork(
            **vars(place),
            restored=BrokenShare.of(with_rule),
            as_it_was=BrokenShare.of(was),
            difference=row.difference,
            interval=row.difference_interval,
            p=row.p,
            corrected=row.p_corrected,
            found=row.p_corrected <= LEVEL and row.difference < 0,
        )
        for (place, was, with_rule), row in zip(counts, rows, strict=True)
    )
    return RestoredRules(n, _verdict(forks, left), forks, tuple(left))


def _places(found: RuleAudit) -> list[ForkPlace]:
    """Every reply that made a forbidden call, once for each rule."""
    calls = [(rule.rule, call) for rule in found.rules for call in rule.calls_without if call.forbidden]
    return list({(call.node, rule): ForkPlace(rule, call.session, call.step, call.node) for rule, call in calls}.values())


def _forked(episodes: Episodes, node: Node, rule: Rule, n: int) -> tuple[Counts, Counts]:
    """Continuations that break the rule at one reply: as it was, and with the rule. Raises UserError where what was shown there
    cannot be shown again, and as :func:`fork`."""
    run = episodes.run
    if rule.predicate is not None and rule.predicate["kind"] == NEEDS:
        raise UserError(f"what breaks {rule.text!r} depends on the calls before, which a fork does not read")
    if not node.head and episodes.agent.compactor is None:  # then the fork continues from the messages before the reply
        before = episodes.load(node.tree).node(str(node.parent))
        shown, again = run.shown(node.id).messages, as_messages(episodes.prompts.shown(before, len(before)))
        if [(one.role, one.text) for one in shown] != [(one.role, one.text) for one in again]:
            raise UserError(f"what the model was shown at node {node.id} was made by a compaction that the run cannot repeat")
    purpose = json_hash([AUDIT, node.id, rule.text, n, episodes.provenance.hash])
    run.log(FORKED, purpose, codec.to_json(ForkedRule(n, node.id, rule.text)))
    run.commit()
    edit = {"rule": {"add": rule.text}}
    task, _ = task_of(run, node.tree)
    made = wait_for(fork(episodes, node.tree, task, node.id, None, n, edit, start=0, purpose=purpose))
    assert made.control is not None
    was, with_rule = _counts(made.control, rule), _counts(made.arm, rule)
    if not (was.n and with_rule.n):
        why = next(attempt.failure for attempt in (*made.control.attempts, *made.arm.attempts) if attempt.failure)
        raise UserError(f"no continuation came to its end ({why})")
    return was, with_rule


def _counts(arm: Arm, rule: Rule) -> Counts:
    """Continuations that break the rule among those that came to their end; missing ones failed."""

    def broken(attempt: Attempt) -> bool | None:
        if attempt.failure is not None:
            return None
        return any(breaks(rule, *call) for turn in attempt.turns for call in calls_of(turn.node))

    return Counts.of(map(broken, arm.attempts))


def _verdict(forks: Sequence[RestoredFork], left: Sequence[LeftOutPlace]) -> str:
    but = f"; {len(left)} could not be played, the first because {left[0].why}" if left else ""
    if not forks:
        return f"no rule was restored{but.replace(';', ':', 1)}"
    named = sum(one.found for one in forks)
    if named:
        return f"with the rule restored it is broken less often at {named} of {len(forks)} forbidden calls{but}"
    return f"nothing stands out: at none of {len(forks)} forbidden calls is the rule broken less often where it is restored{but}"


def findings(played: RestoredRules) -> list[Finding]:
    """What the forks found, as the run keeps it: the calls that the missing rule accounts for,
    and the verdict with every number."""
    about = {"n": played.n}
    made = [Finding("rules restored", AUDIT, played.verdict, evidence=codec.to_json(played), identity=about)]
    for one in played.forks:
        if one.found:
            do = "pin the rule: `ramify serve --middleware pins:FILE`"
            why, evidence = f"{one.sentence}: {one.rule!r}", codec.to_json(one)
            made.append(Finding("missing rule", AUDIT, why, one.node, 0, do, one.difference, "share", evidence, about))
    return made
