"""Ask why an attempt was lost: open the run, say who plays and who decides, choose the attempt, and have it explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ramify.base.errors import RamifyError, UserError
from ramify.base.waiting import wait_for
from ramify.env.protocol import AnyEnvironment
from ramify.jobs.components import cautions
from ramify.jobs.judged import judge
from ramify.jobs.log.rarity import Successes, broken_rules, successes
from ramify.jobs.log.rules import violations
from ramify.jobs.why import sentences
from ramify.jobs.why.answer import Why
from ramify.jobs.why.attempts import choose, first_reply, read_case
from ramify.jobs.why.findings import keep, stored
from ramify.jobs.why.passages import Passages
from ramify.jobs.why.question import WhyQuestion
from ramify.jobs.why.recorded import recorded
from ramify.jobs.why.records import LEAST
from ramify.jobs.why.search import searched
from ramify.jobs.why.shares import shared
from ramify.model.function import AnyModel
from ramify.rollout.attempts import Attempt
from ramify.rollout.commands import commands
from ramify.rollout.stored import WhoPlays, episodes_in, named_components, other_agent
from ramify.trace.db import Run
from ramify.trace.outcome import Decider, settled
from ramify.trace.view import View


def why(
    path: Path | str,
    where: str = "",
    *,
    n: int = 48,
    first: int = 4,
    samples: int | None = None,
    level: float = 0.05,
    least: float = LEAST,
    describe: int = 16,
    share: bool = False,
    model: AnyModel | None = None,
    env: AnyEnvironment | None = None,
    scorer: str | None = None,
    trust: bool = False,
    effects: Mapping[str, str] | None = None,
    on_attempt: Callable[[Attempt], object] = lambda attempt: None,
    on_note: Callable[[str], object] = lambda note: None,
) -> Why:
    """Which step of an attempt in the run at ``path`` lost it (of a successful one: won it), and what else was possible there.

    ``where`` names a tree or a node, see :func:`ramify.jobs.why.attempts.choose`. ``first`` forks a position to begin with and at
    most ``n``; at most
    ``samples`` in all (None: no limit; 0: nothing is run again, and the attempts that are there are compared). A step stands out
    where success changed by more than ``least`` at ``level``, corrected over the steps. ``describe``: continuations to have from
    before the step that stands out, to say what else was possible there. ``share``: also share the change of success over the
    steps, by at most ``n`` walks (:mod:`ramify.jobs.share`). ``model`` and ``env`` are needed where the run names none: without
    them nothing is run again. With them recorded attempts that nobody judged are (:func:`ramify.jobs.judged.judge`). ``effects``:
    what tools do to the world, by name (:data:`ramify.env.tools.EFFECTS`). ``on_note`` is called, before anything is sampled,
    with what a reader must know: that another agent continues than the one that sampled the attempt. The result is stored as a
    finding; the same call again loads it, another one loads the forks there are. Raises UserError, and RamifyError where
    every continuation failed.
    """
    question = WhyQuestion(n, first, samples, level, least, describe, share, scorer)
    who = WhoPlays(model, env, trust, effects or {})
    with Run.open(path, write=True) as run:
        judge(run, who)
        deciding = settled(run, scorer)
        return explained(run, choose(run, deciding, where), deciding, question, who, on_attempt, on_note)


def explained(
    run: Run,
    view: View,
    deciding: Decider,
    question: WhyQuestion,
    who: WhoPlays,
    on_attempt: Callable[[Attempt], object],
    on_note: Callable[[str], object],
    among: Successes | None = None,
) -> Why:
    """The answer about one attempt of a run that is open for writing, stored in it; see :func:`why`. ``among``: the run's
    successful attempts, which are read where they are not given and nothing is run again."""
    again = plays_again(run, question, who)
    if question.share and not again:
        raise UserError(
            "credit is shared over steps that are sampled again: say what plays (a model and an environment) and leave samples "
            "for it"
        )
    folder, able = str(run.folder), commands(run, who)
    if not again:
        among = successes(run, deciding) if among is None else among
        broken = broken_rules(violations(run, view), among, question.level, view.leaf)
        result = replace(recorded(read_case(run, view, deciding, None), question.level, broken), run=folder, commands=able)
        keep(run, result, question.identity(None))
        return result
    episodes, _ = episodes_in(run, first_reply(view), who)
    identity = question.identity(episodes.provenance)
    if (known := stored(run, view.info.name, view.leaf, identity)) is not None:
        return replace(known, run=folder, commands=able)  # the run may have been moved
    episodes.on_attempt = on_attempt
    caveats = other_agent(episodes, first_reply(view)) + cautions(episodes.agent.model)
    for caveat in caveats:
        on_note(caveat)
    case, purpose = read_case(run, view, deciding, episodes.provenance.hash), f"why {episodes.provenance.hash[:12]}"
    passages = Passages(episodes, case, purpose)
    with episodes.committing():
        result = wait_for(searched(passages, question, purpose))
        if passages.forks.first_failure:
            caveats += (f"some continuations failed, the first at {passages.forks.first_failure}",)
        if passages.forks.first_failure and not result.before.n:
            raise RamifyError(f"every continuation failed, the first at {passages.forks.first_failure}")
        if question.share:
            result = wait_for(shared(episodes, case, result, question))
    if result.spent:
        caveats += (sentences.spent(question.samples, question.share),)
    result = replace(result, caveats=caveats, run=folder, commands=able)
    keep(run, result, identity)
    return result


def plays_again(run: Run, question: WhyQuestion, who: WhoPlays) -> bool:
    """Whether steps are sampled again: the run names an agent and an environment, or both are given, and samples are left.
    Raises UserError where one is given and the other is missing."""
    if question.samples == 0:
        return False
    try:
        named_components(run, who.model, who.env)
    except UserError:
        if who.model is not None or who.env is not None:
            raise
        return False
    return True


def most_samples(views: Sequence[View], again: bool, question: WhyQuestion, changes: int) -> int:
    """How many continuations it takes at most to explain ``views`` and to make ``changes``."""
    steps = sum(len(view.steps) for view in views)
    each = min(question.n * steps * (1 + question.share), question.budget * len(views)) if again else 0
    return int(each) + 2 * question.n * changes
