"""A pretrained model and copies of it that were trained here: what reproductions on a real model (``ramify repro METHOD --real``)
share.

Copies are made once a machine and kept, whichever reproduction asks first. A model is a name as every verb takes it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache as remembered
from pathlib import Path
from typing import Any

from ramify.base.files import folder_aside
from ramify.base.ids import json_hash
from ramify.base.seeds import generator
from ramify.env.protocol import Task
from ramify.integrations.environments.functions import FunctionEnvironment
from ramify_experiments.cases import call_verb
from ramify_experiments.lab import cache

EDITION = 1
"""Of the copies: raised when a change of the code would make them otherwise."""


def graded_environment(tasks: Iterable[Task]) -> FunctionEnvironment:
    """Questions whose answer is a number: right where the last number of the reply is ``task.data["want"]``."""
    return FunctionEnvironment(tools=[], tasks=list(tasks), state=lambda task: {}, grade=_graded)


def _graded(task: Task, answer: str, _state: Any) -> float:
    return float(is_right(answer, task.data))


def is_right(text: str, data: Mapping[str, Any]) -> bool:
    """The same as a judge of replies."""
    numbers = re.findall(r"-?\d+", text)
    return bool(numbers) and numbers[-1] == str(data["want"])


def two_digits(n: int) -> list[tuple[int, int]]:
    """``n`` different pairs of numbers from 10 to 99, in an order that looks random."""
    order = generator(0, "pretrained tasks").permutation(90 * 90)[:n]
    return [(10 + int(pair) // 90, 10 + int(pair) % 90) for pair in order]


LONGEST = 40
"""Tokens of an attempt at a sum at most: most of the improved model's end before."""
SUMS = "python:ramify_experiments.real:sums"
"""The environment of :data:`sums`, as a verb takes it."""
sums = graded_environment(
    Task(f"sum-{a}-{b}", {"prompt": f"Compute {a} + {b}. Answer with the number only.", "want": a + b})
    for a, b in two_digits(1200)
)


def pretrained_name(model: str) -> str:
    """The name of the pretrained model's folder, which tells quantisation and hash of a GGUF file.

    Raises UserError and NeedsError as :func:`ramify.engine.checkpoints.model_folder`.
    """
    return _folder(model).name


@remembered
def _folder(model: str) -> Path:
    from ramify.engine.checkpoints import model_folder

    return model_folder(model)


def improved(model: str, env: str = SUMS, seed: int = 0) -> str:
    """``model`` after ``ramify improve`` with its defaults on 3,000 tokens of ``env``, an adapter: ``hf:FOLDER``.

    Its ``improved.json`` is what the verb found. Made on the first call on a machine, in some two minutes.
    """
    from ramify.jobs.improve import ImproveConfig, improve

    settings = {"env": env, "seed": seed, "tokens": 3000, "updates": 8, "eval_episodes": 60, "changes": 0}
    name = f"{pretrained_name(model)}-improved-{json_hash({**settings, 'model': pretrained_name(model), 'edition': EDITION})}"
    place = cache() / "recipes" / name
    if not (place / "improved.json").is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        with folder_aside(place.parent) as aside:
            result = improve(ImproveConfig(model=model, **settings), aside / "run")
            agent = aside / "run" / "agent"
            (agent / "improved.json").write_text(json.dumps(result.to_json()) + "\n", encoding="utf-8")
            with suppress(OSError):  # another process was first, and its copy is the same
                agent.rename(place)
    return f"hf:{place}"


def copy_of_attempts(model: str, tasks: int, attempts: int, folder: Path, seed: int = 0) -> Path:
    """A copy in ``folder`` of a run in which the improved ``model`` made ``attempts`` at each of so many sums.

    Played once a machine and kept; a call that was interrupted goes on.
    """
    agent = improved(model, seed=seed)
    kept = cache() / "recipes" / f"{Path(agent.removeprefix('hf:')).name}-attempts-{tasks}-{attempts}-{EDITION}"
    sampled = ("--count", tasks, "--attempts", attempts, "--max-reply", LONGEST, "--seed", seed)
    call_verb("rollout", "--model", agent, "--env", SUMS, *sampled, "--out", kept)
    shutil.copytree(kept, folder / "run")
    return folder / "run"
