"""The wall where candidates come from elsewhere: a judge of replies (TRL, verl, inspect, any grader),
and an assertion for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.base import codec
from ramify.base.ids import stable_hash
from ramify.base.registry import register
from ramify.base.waiting import wait_for
from ramify.methods.kernel_search.algorithm import reward
from ramify.methods.kernel_search.loop import ranked_speedup
from ramify.methods.kernel_search.named import read_task
from ramify.methods.kernel_search.proposers import code_in
from ramify.methods.kernel_search.task import KernelTask, read_source
from ramify.methods.kernel_search.wall import Code, Wall, WallTrial
from ramify.score.judge import Each, Item, Judgement


@register("judge", "kernel-search")
class KernelJudge(Each):
    """``kernel-search:FILE.c:FUNCTION``: what the last fenced block of a reply is worth as a candidate for that kernel.

    The reward of the search: 0 where the wall refuses it or there is no block, 0.05 to 1 by the lower bound of its speed-up, 0.43
    where it is as fast. Without a kernel it cannot say. Replies are judged one after the other: they are timed.
    """

    def __init__(self, argument: str = "", *, pairs: int = 6, allow_unsandboxed: bool = False) -> None:
        """Raises UserError as :func:`ramify.methods.kernel_search.read_task`."""
        self.name = f"kernel-search:{Path(argument).name}" if argument else "kernel-search"
        self.wall: Wall | None = None
        if argument:
            task = read_task(argument, allow_unsandboxed=allow_unsandboxed)
            self.wall = Wall(task, pairs=pairs, allow_unsandboxed=allow_unsandboxed)

    @classmethod
    def of(cls, task: KernelTask, **settings: Any) -> KernelJudge:
        """A judge of a task made in Python; ``settings`` are those of :class:`Wall`."""
        judge = cls()
        judge.wall, judge.name = Wall(task, **settings), f"kernel-search:{task.name}"
        return judge

    @property
    def identity(self) -> str:
        """Hash of the kernel and of how often it is timed."""
        return stable_hash("judge", "kernel-search", 1, *((self.wall.task.identity, self.wall.pairs) if self.wall else ()))

    async def judge(self, items: Sequence[Item]) -> list[Judgement]:
        """See :class:`Judge`."""
        return [await self._attempted(item) for item in items]

    async def one(self, item: Item) -> Judgement:
        """The reward of the reply's candidate."""
        if self.wall is None:
            return Judgement()
        code = code_in(self.wall.original, item.text)
        if code is None:
            return Judgement(0.0, evidence=codec.to_json(KernelEvidence("the reply has no fenced block", "reply")))
        trial = await self.wall.trial(code, int(code.key[:6], 16))
        return Judgement(reward(ranked_speedup(trial)), evidence=codec.to_json(_evidence(trial)))


@dataclass(frozen=True, slots=True)
class KernelEvidence:
    """What a judgement rests on."""

    refused: str
    stage: str
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    ranked: bool = False


def _evidence(trial: WallTrial) -> KernelEvidence:
    gain = trial.gain
    if gain is None:
        return KernelEvidence(trial.refused, trial.stage)
    return KernelEvidence(trial.refused, trial.stage, gain.speedup, (gain.low, gain.high), gain.ranked)


@register("assertion", "right-kernel")
def assert_right_kernel(
    kernel: str, candidate: Path | str, *, at_least: float = 0.0, pairs: int = 10, allow_unsandboxed: bool = False
) -> None:
    """Assert that the function in the file ``candidate`` gives what ``kernel`` (FILE.c:FUNCTION) does,
    and is ``at_least`` so many times as fast.

    Judged by the wall of kernel-search. ``at_least`` is held against the upper end of the 95 % interval, so a busy machine does
    not fail a test; 0 times nothing. Raises AssertionError saying what is wrong, UserError on what is not a kernel.
    """

    task = read_task(kernel, allow_unsandboxed=allow_unsandboxed)
    wall = Wall(task, pairs=pairs, allow_unsandboxed=allow_unsandboxed)
    code = Code(read_source(Path(candidate)), wall.original.flags, wall.original.macros)
    trial = wait_for(wall.confirm(code) if at_least > 0 else wall.trial(code, time=False))
    if trial.refused:
        raise AssertionError(f"{candidate} is refused ({trial.stage}): {trial.refused}")
    if at_least > 0 and trial.gain is not None and trial.gain.high < at_least:
        raise AssertionError(
            f"{candidate} is {trial.gain.speedup:.2f} times as fast as {kernel} (95 % interval {trial.gain.low:.2f} to "
            f"{trial.gain.high:.2f}), "
            f"not {at_least:g}"
        )
