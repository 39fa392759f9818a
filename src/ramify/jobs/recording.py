"""Record somebody's agent as it is: n attempts of one command, in a run that the same call continues (``ramify record``)."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ramify.base.config import check
from ramify.base.progress import SILENT, Progress
from ramify.env.protocol import conversation_of
from ramify.jobs.collect import Collection, RolloutConfig
from ramify.jobs.results import Collected
from ramify.render.result import Section
from ramify.rollout.components import check_trust
from ramify.trace.connect import holds_run
from ramify.trace.db import Run
from ramify.trace.node import ROLLOUT, AttemptRecord


@dataclass(frozen=True)
class Recorded(Collected):
    """What ``record`` recorded."""

    conversations: int = 1
    """Most conversations that one attempt had: the main one, and those of subagents, titles and summaries."""
    ended: Mapping[str, int] = field(default_factory=dict)
    """How commands ended that did not end with exit code 0, and how often each."""

    def sections(self) -> Iterable[Section]:
        """What attempts came to, and what to ask next."""
        yield from super().sections()
        several = (
            f"An attempt had up to {self.conversations} conversations (subagents, titles, summaries): each call of them is one "
            "of its steps, with the number of its conversation."
        )
        reasons = "".join(f"\n  {count} x {how}" for how, count in self.ended.items())
        ended = f"Commands that did not end with exit code 0:{reasons}" if reasons else ""
        lost = f"Which step lost it: `ramify why {shlex.quote(self.run)}`." if self.successes < self.n else ""
        yield Section.of("", several if self.conversations > 1 else "", ended, lost)


class _Calls(Progress):
    """Progress that says how many calls of the model there were, too."""

    def __init__(self, shown: Progress) -> None:
        self.shown, self.calls, self.done, self.note = shown, 0, 0.0, ""

    def begin(self, total: float, done: float = 0, phase: str = "", unit: str = "") -> None:
        """See :class:`Progress`."""
        self.done = done
        self.shown.begin(total, done, phase, unit)

    def at(self, done: float, note: str = "", phase: str = "") -> None:
        """See :class:`Progress`."""
        self.done, self.note = done, note
        calls = f"{self.calls} calls" if self.calls else ""
        self.shown.at(done, ", ".join(filter(None, (calls, note))), phase)

    def called(self) -> None:
        """The model was called once more."""
        self.calls += 1
        self.at(self.done, self.note)


class Recording(Collection):
    """``attempts`` attempts of the environment's one task."""

    kind = "record"

    def collect(self, folder: Path, progress: Progress = SILENT) -> Recorded:
        """See :class:`Collection`."""
        shown = _Calls(progress)
        self.environment.on_request = shown.called  # type: ignore[attr-defined]  # it is a command
        self.environment.at_once = self.config.concurrency  # type: ignore[attr-defined]
        played = super().collect(folder, shown)
        with Run.open(folder) as run:
            ended = Counter(filter(None, (_ended(run, one) for one in run.attempts(purpose=ROLLOUT))))
            talks = [conversation_of(node.data) for info in run.trees() for node in run.tree(info.name).nodes.values()]
        shared = {part.name: getattr(played, part.name) for part in fields(Collected)}
        return Recorded(**shared, conversations=1 + max(talks, default=0), ended=dict(ended.most_common(3)))


def _ended(run: Run, attempt: AttemptRecord) -> str:
    """How its command ended; "" where that was with exit code 0, or the attempt is not counted."""
    told = run.node(attempt.leaf).data.get("command")
    told = told if isinstance(told, Mapping) else {}
    if attempt.failure or not (attempt.truncated or told.get("code") or told.get("late")):
        return ""
    if attempt.truncated:
        return "cut off after the most calls that it may make (--calls)"
    if told.get("late"):
        return "ended because its time was over (--seconds)"
    how = f"signal {-told['code']}" if told["code"] < 0 else f"exit code {told['code']}"
    return f"{how}: {told['last']}" if told.get("last") else how


def settings_of(**given: Any) -> RolloutConfig:
    """The settings of a recording. Raises UserError."""
    return check(RolloutConfig, {"count": 1, "max_reply": 4096, **given})


def resume(path: Path, progress: Progress = SILENT, trust: bool = False) -> Recorded:
    """Continue the recording in ``path`` with its stored settings. Raises UserError where its command is not trusted."""
    with Run.open(path) as run:
        check_trust(run, trust)
        stored = {name: value for name, value in run.config.items() if name in RolloutConfig.model_fields}
    return Recording(check(RolloutConfig, stored, f"the stored settings of {path}")).collect(path, progress)


def stored_environment(folder: Path) -> str:
    """The environment that the run in ``folder`` names; "" where there is no run, or it names none."""
    if not holds_run(folder):
        return ""
    with Run.open(folder) as run:
        return str(run.config.get("env") or "") if run.kind == Recording.kind else ""
