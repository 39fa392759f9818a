"""Any judge of ramify as a scorer of inspect (``inspect_ai``): ``Task(..., scorer=inspect_scorer(grader))``."""

from __future__ import annotations

from typing import Any

from ramify.env.protocol import Task
from ramify.integrations.inspect.logs import as_openai
from ramify.integrations.inspect.writer import require_inspect
from ramify.integrations.trainers.trl_trainer import path_of
from ramify.score.judge import Item, Judge, judged
from ramify.trace.message import plain


def inspect_scorer(scorer: Judge) -> Any:
    """A scorer of inspect that judges a sample's messages with ``scorer`` and reports its value, with mean and standard error.

    The sample's target is the task's ``answer``, its metadata the rest of the task's data. A sample the judge failed on is
    unscored in inspect (NaN), never a zero. Raises NeedsError where inspect is not installed.
    """
    require_inspect()
    from inspect_ai.scorer import Score, Target, mean, stderr
    from inspect_ai.scorer import scorer as registered
    from inspect_ai.solver import TaskState

    def made() -> Any:
        async def score(state: TaskState, target: Target) -> Score:
            messages = [as_openai(message) for message in state.messages]
            path = path_of([], messages, f"sample {state.sample_id!r}")
            data = {**plain(dict(state.metadata or {})), "answer": target.text}
            (found,) = await judged(scorer, [Item.of(path, Task(str(state.sample_id), data))])
            if found.value is None:
                return Score(value=float("nan"), explanation=f"unscored: {plain(found.failure) or 'no score'}")
            return Score(value=float(found.value), metadata={"unit": found.unit, "evidence": plain(found.evidence)})

        return score

    judge: Any = registered(metrics=[mean(), stderr()], name=scorer.name)(made)
    return judge()
