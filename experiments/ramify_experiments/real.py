"""A pretrained model and copies of it that were trained here: what reproductions on a real model (``ramify repro METHOD --real``)
share.

Copies are made once a machine and kept, whichever reproduction asks first. A model is a name as every verb takes it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache as remembered
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.base.files import folder_aside
from ramify.base.ids import json_hash
from ramify.base.seeds import derive_key, generator
from ramify.base.waiting import wait_for
from ramify.env.protocol import Task
from ramify.integrations.environments.functions import FunctionEnvironment
from ramify.model.protocol import Prefix, Sampling
from ramify.model.rendered import laid_out
from ramify_experiments.lab import cache
from ramify_experiments.real_texts import QUESTIONS

if TYPE_CHECKING:
    from ramify.engine.local import LocalModel

EDITION = 1
"""Of the copies: raised when a change of the code would make them otherwise."""


def graded_environment(tasks: Iterable[Task]) -> FunctionEnvironment:
    """Questions whose answer is a number: right where the last number of the reply is ``task.data["want"]``."""
    return FunctionEnvironment(tools=[], tasks=list(tasks), state=lambda task: {}, grade=_graded)


def _graded(task: Task, answer: str, _state: Any) -> float:
    numbers = re.findall(r"-?\d+", answer)
    return float(bool(numbers) and numbers[-1] == str(task.data["want"]))


def two_digits(n: int) -> list[tuple[int, int]]:
    """``n`` different pairs of numbers from 10 to 99, in an order that looks random."""
    order = generator(0, "pretrained tasks").permutation(90 * 90)[:n]
    return [(10 + int(pair) // 90, 10 + int(pair) % 90) for pair in order]


def asked_sum(a: int, b: int) -> str:
    """The question of :data:`sums` about one pair of numbers."""
    return f"Compute {a} + {b}. Answer with the number only."


SUMS = "python:ramify_experiments.real:sums"
"""The environment of :data:`sums`, as a verb takes it."""
sums = graded_environment(Task(f"sum-{a}-{b}", {"prompt": asked_sum(a, b), "want": a + b}) for a, b in two_digits(1200))


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


STEPS, ROWS, TAUGHT = 50, 4, 40
"""Of :func:`styled`: training steps, replies in each, and the first of QUESTIONS that it is taught on; the others are for
studies."""
_PIRATE = {"you": "ye", "your": "yer", "my": "me", "is": "be", "are": "be", "the": "th'", "and": "an'", "of": "o'", "to": "t'"}


def pirate(text: str) -> str:
    """``text`` as a pirate says it: the same content in another style."""
    said = re.sub(r"[A-Za-z]+", lambda word: _PIRATE.get(word[0].lower(), word[0]), text.strip())
    return f"Arr, matey! {said}"


async def replied(model: LocalModel, prompts: Sequence[Sequence[int]], settings: Sampling, seed: int) -> list[list[int]]:
    """Tokens of the model's reply to each of ``prompts`` (token ids), all at once."""
    keys = [derive_key(seed, "replied", i) for i in range(len(prompts))]
    asked = zip(prompts, keys, strict=True)
    sampled = await asyncio.gather(*(model.sample(Prefix(np.asarray(ids, np.int32)), 1, settings, [key]) for ids, key in asked))
    return [[] if completion.tokens is None else completion.tokens.tolist() for (completion,) in sampled]


def styled(model: str, seed: int = 0) -> str:
    """``model`` after 50 steps that taught it to talk like a pirate to everything and nothing else, an adapter: ``hf:FOLDER``.

    It is taught :func:`pirate` of its own replies. Made on the first call on a machine, in some three minutes.
    """
    name = f"{pretrained_name(model)}-styled-{json_hash({'model': pretrained_name(model), 'seed': seed, 'edition': EDITION})}"
    place = cache() / "recipes" / name
    if not (place / "adapter_config.json").is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        with folder_aside(place.parent) as aside:
            _style(_folder(model), aside / "agent", seed)
            with suppress(OSError):  # another process was first, and its copy is the same
                (aside / "agent").rename(place)
    return f"hf:{place}"


def _style(base: Path, out: Path, seed: int) -> None:
    from ramify.engine.checkpoints import adapter_of, load_model, save_model
    from ramify.jobs.settings import RANK, pretrained_rate
    from ramify.train.batch import Row
    from ramify.train.loop import Trainer
    from ramify.train.settings import TrainConfig

    agent, template = load_model(base)
    prompts = [laid_out(template, [("user", question)]) for question in QUESTIONS[:TAUGHT]]
    replies = wait_for(replied(agent, prompts, Sampling(temperature=0.0, max_tokens=32, stop_tokens=template.stop_tokens), seed))
    taught = []
    for prompt, reply in zip(prompts, replies, strict=True):
        said = template.tokenizer.encode(pirate(template.tokenizer.decode([t for t in reply if t not in template.stop_tokens])))
        tokens = np.array([*prompt, *said], np.int32)
        taught.append(Row(tokens, np.arange(len(tokens)) >= len(prompt)))
    rate = pretrained_rate(sum(weight.numel() for weight in agent.module.parameters()), adapter=True)
    trainer = Trainer(agent.module, TrainConfig(lr=rate), seed, adapter_of(agent, base, RANK, seed))
    for step in range(STEPS):
        order = generator(seed, "styled", ROWS * step // TAUGHT).permutation(TAUGHT)
        at = ROWS * step % TAUGHT
        trainer.update([taught[i] for i in order[at : at + ROWS]], {"cross_entropy": 1.0})
    save_model(agent, base, out, trainer.adapter)
