"""Judge recorded attempts that nobody judged: the environment plays their recorded replies again,
to the end, and says how they ended.

A recording of ``ramify serve --record`` holds what an agent asked and what the model replied, and no outcome. Where the agent can
be run again it is given the recorded replies; its environment grades what comes of them (a coding agent's files, by their tests).
No model is asked.
"""

from __future__ import annotations

from ramify.base.errors import RamifyError
from ramify.base.waiting import wait_for
from ramify.rollout.attempts import Attempt
from ramify.rollout.stored import WhoPlays, episodes_in, task_of
from ramify.trace.db import Run
from ramify.trace.outcome import NOBODY, settled


def judge(run: Run, who: WhoPlays) -> list[Attempt]:
    """Play the attempts of a run that is open for writing that end in a reply and have no outcome, and store how they ended.

    Only of a run that names no environment of its own, with model and environment given, and where no scorer but an environment
    judges; else nothing is played. Raises RamifyError where every one failed, as where the agent does not ask what it asked then.
    """
    if who.model is None or who.env is None or isinstance(run.config.get("env"), str):
        return []
    deciding = settled(run)
    if deciding is not NOBODY and deciding.scorer != "env":
        return []
    ends = []
    for info in run.trees():
        scored, tree = deciding.scores(run, info.name), run.tree(info.name)
        ends += [node for node in tree.leaves() if node.role == "assistant" and node.id not in scored]
    if not ends:
        return []
    episodes, _ = episodes_in(run, ends[0], who)
    with episodes.committing():
        done = [wait_for(episodes.judged(end.tree, task_of(run, end.tree)[0], end.id)) for end in ends]
    if all(attempt.outcome is None for attempt in done):
        raise RamifyError(f"no recorded attempt could be played again to judge it, the first because of {done[0].failure}")
    return done
