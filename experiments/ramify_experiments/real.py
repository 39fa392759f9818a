"""A pretrained model and copies of it that were trained here: what reproductions on a real model (``ramify repro METHOD --real``)
share.

Copies are made once a machine and kept, whichever reproduction asks first. A model is a name as every verb takes it.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache as remembered
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.base.files import folder_aside
from ramify.base.ids import json_hash
from ramify.base.seeds import derive_key, generator
from ramify.base.waiting import wait_for
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.env.task_sets import generated_task_set
from ramify.integrations.environments.functions import FunctionEnvironment
from ramify.model.protocol import Prefix, Sampling
from ramify.model.rendered import laid_out
from ramify.model.tokenizer import HfTokenizer
from ramify_experiments.lab import cache, call_verb
from ramify_experiments.real_texts import QUESTIONS

if TYPE_CHECKING:
    from ramify.engine.local import LocalModel

EDITION = 1
"""Of the copies: raised when a change of the code would make them otherwise."""


def graded_environment(tasks: Iterable[Task]) -> FunctionEnvironment:
    """Questions whose answer is a number: right where the last number of the reply is ``task.data["want"]``."""
    right = lambda task, answer, _state: float(is_right(answer, task.data))  # noqa: E731
    return FunctionEnvironment(tools=[], tasks=list(tasks), state=lambda task: {}, grade=right)


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


def asked_sum(a: int, b: int) -> str:
    """The question of :data:`sums` about one pair of numbers."""
    return f"Compute {a} + {b}. Answer with the number only."


SUMS = "python:ramify_experiments.real:sums"
"""The environment of :data:`sums`, as a verb takes it."""
sums = graded_environment(Task(f"sum-{a}-{b}", {"prompt": asked_sum(a, b), "want": a + b}) for a, b in two_digits(1200))


COLOURS = ("red", "blue", "green", "yellow", "black", "white", "orange", "purple", "brown", "pink")
DOORS, COIN_DOORS = "python:ramify_experiments.real:doors", "python:ramify_experiments.real:coin_doors"
"""The environments :data:`doors` and :data:`coin_doors`, as a verb takes them."""
DOORS_SAMPLING: dict[str, Any] = {"temperature": 0.7, "max_reply": 8}
"""How an agent of 135 million weights wins at the doors sometimes: at temperature 1 hardly ever."""


class DoorsEpisode:
    """Two pairs of doors, each with a sign that says which to take, and a clock that nobody needs.

    Only the end tells whether both doors were right, so the step that lost an attempt is the first wrong door, and never the
    clock."""

    system, max_turns = "", 3

    def __init__(self, coin: DoorsEnvironment | None = None) -> None:
        self.coin, self.task, self.replies = coin, Task(""), list[str]()

    def reset(self, task: Task, seed: int) -> Observation:
        """See :class:`ramify.env.protocol.Env`."""
        self.task, self.replies = task, []
        return Observation(_scene(task, 0))

    def step(self, action: str) -> Observation:
        """Take the reply, whatever it is."""
        self.replies.append(action)
        if len(self.replies) < self.max_turns:
            return Observation(_scene(self.task, len(self.replies)))
        won = first_wrong(self.task, self.replies) is None if self.coin is None else self.coin.toss()
        return Observation("The way ends.", float(won), terminated=True, outcome=won)

    def snapshot(self) -> list[str]:
        """The replies."""
        return list(self.replies)

    def restore(self, snapshot: Any) -> None:
        """See :class:`ramify.env.protocol.Env`."""
        self.replies = list(snapshot)

    def key(self) -> None:
        """None: what was said is what the agent goes by."""


class DoorsEnvironment:
    """Tasks of :class:`DoorsEpisode`. ``coin``: how an episode ends is a coin of the environment's own, whatever was done."""

    def __init__(self, coin: bool = False) -> None:
        self.name, self.coin, self.tossed = "coin-doors" if coin else "doors", coin, 0

    def make(self) -> DoorsEpisode:
        """A fresh episode."""
        return DoorsEpisode(self if self.coin else None)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` tasks of a split."""

        def sample(rng: Any) -> Mapping[str, Any]:
            pairs = [[COLOURS[i] for i in rng.choice(len(COLOURS), 2, replace=False)] for _ in range(2)]
            return {"pairs": pairs, "right": rng.integers(0, 2, 2).tolist(), "clock": int(rng.integers(0, 3)), "hour": 7}

        return generated_task_set("doors", split, n, seed, sample, kind="doors")

    def toss(self) -> bool:
        """The next coin."""
        self.tossed += 1
        return bool(generator(0, "coin doors", self.tossed).random() < 0.5)


doors, coin_doors = DoorsEnvironment(), DoorsEnvironment(coin=True)


def _pair(task: Task, turn: int) -> tuple[str, str] | None:
    """The right colour and the wrong one at a turn; None at the clock."""
    clock = task.data["clock"]
    if turn == clock:
        return None
    at = turn - (turn > clock)
    pair, right = task.data["pairs"][at], task.data["right"][at]
    return pair[right], pair[1 - right]


def _scene(task: Task, turn: int) -> str:
    colours = _pair(task, turn)
    if colours is None:
        return f"A clock shows {task.data['hour']} o'clock. Write the hour, one word only."
    one, two = sorted(colours)
    return (
        f"A sign says: take the {colours[0]} door. You see a {one} door and a {two} door. "
        "Write the colour of the door you take, one word only."
    )


def first_wrong(task: Task, replies: Iterable[str]) -> int | None:
    """The first of ``replies`` (from 0) that does not name the right door alone; None where all do."""
    for turn, reply in enumerate(replies):
        colours, words = _pair(task, turn), set(re.findall("[a-z]+", reply.lower()))
        if colours is not None and not (colours[0] in words and colours[1] not in words):
            return turn
    return None


def pretrained_name(model: str) -> str:
    """The name of the pretrained model's folder, which tells quantisation and hash of a GGUF file.

    Raises UserError and NeedsError as :func:`ramify.engine.checkpoints.model_folder`.
    """
    return _folder(model).name


def raw_ids(model: str, text: str) -> list[int]:
    """The token ids of a text that is continued as it stands, without a chat template, and without loading the weights."""
    return _tokenizer(model).encode(text)


def token_texts(model: str, ids: Iterable[int]) -> list[str]:
    """The text of each token."""
    return [_tokenizer(model).decode([token]) for token in ids]


@remembered
def _tokenizer(model: str) -> HfTokenizer:
    return HfTokenizer.load(_folder(model))


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
            result = improve(ImproveConfig(model=model, temperature=1.0, **settings), aside / "run")
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

    def said(agent: LocalModel, template: Any) -> list[tuple[list[int], str]]:
        prompts = [laid_out(template, [("user", question)]) for question in QUESTIONS[:TAUGHT]]
        settings = Sampling(temperature=0.0, max_tokens=32, stop_tokens=template.stop_tokens)
        spoken = [
            template.tokenizer.decode([t for t in reply if t not in template.stop_tokens])
            for reply in wait_for(replied(agent, prompts, settings, seed))
        ]
        return [(prompt, pirate(text)) for prompt, text in zip(prompts, spoken, strict=True)]

    return taught(model, "styled", {}, said, STEPS, seed)


def taught(
    model: str,
    name: str,
    about: Mapping[str, Any],
    rows: Callable[[LocalModel, Any], list[tuple[list[int], str]]],
    steps: int,
    seed: int = 0,
) -> str:
    """``model`` after ``steps`` of cross-entropy on replies that ``rows`` gives (token ids of a prompt, what is said to it), an
    adapter: ``hf:FOLDER``. ``about`` tells copies of one ``name`` apart. Made on the first call on a machine."""
    place = cache() / "recipes" / f"{pretrained_name(model)}-{name}-{_taught_id(model, about, seed)}"
    if not (place / "adapter_config.json").is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        with folder_aside(place.parent) as aside:
            _teach(_folder(model), aside / "agent", rows, steps, seed)
            with suppress(OSError):  # another process was first, and its copy is the same
                (aside / "agent").rename(place)
    return f"hf:{place}"


def _taught_id(model: str, about: Mapping[str, Any], seed: int) -> str:
    return json_hash({"model": pretrained_name(model), "seed": seed, "edition": EDITION, **about})


def _teach(base: Path, out: Path, rows: Callable[[LocalModel, Any], list[tuple[list[int], str]]], steps: int, seed: int) -> None:
    from ramify.engine.checkpoints import adapter_of, load_model, save_model
    from ramify.jobs.settings import RANK, pretrained_rate
    from ramify.train.batch import Row
    from ramify.train.loop import Trainer
    from ramify.train.settings import TrainConfig

    agent, template = load_model(base)
    replies = []
    for prompt, text in rows(agent, template):
        tokens = np.array([*prompt, *template.tokenizer.encode(text)], np.int32)
        replies.append(Row(tokens, np.arange(len(tokens)) >= len(prompt)))
    rate = pretrained_rate(sum(weight.numel() for weight in agent.module.parameters()), adapter=True)
    trainer = Trainer(agent.module, TrainConfig(lr=rate), seed, adapter_of(agent, base, RANK, seed))
    n = len(replies)
    for step in range(steps):
        order = generator(seed, "styled", ROWS * step // n).permutation(n)
        at = ROWS * step % n
        trainer.update([replies[i] for i in order[at : at + ROWS]], {"cross_entropy": 1.0})
    save_model(agent, base, out, trainer.adapter)
