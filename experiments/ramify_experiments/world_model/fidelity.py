"""One small model of three environments: how often it answers as they do, on true history and on its own;
and what masking echoes is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from ramify.base import codec
from ramify.base.seeds import generator
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.env.protocol import Task
from ramify.methods.world_model import SimulatedEnvironment
from ramify.methods.world_model.evaluation import TurnResult, compared
from ramify.methods.world_model.predict import BASELINES, ModelPredictor, baseline
from ramify.methods.world_model.training import mask_of, world_rows
from ramify.methods.world_model.trajectories import EnvTrajectory, EnvTurn
from ramify.model.chat import SPECIALS, TagTemplate
from ramify.model.protocol import Sampling
from ramify.model.tokenizer import HfTokenizer
from ramify.train.batch import Row
from ramify_experiments.models import Course, Recipe, Report, silent, training, word_tokenizer
from ramify_experiments.world_model.environments import (
    DIRECTORIES,
    FILES,
    KEYS,
    KINDS,
    NAMES,
    VALUES,
    WORDS,
    KvEnvironment,
    ShellEnvironment,
    page,
)

TURNS = 8
COMMANDS = (
    "set get del list echo pwd cd ls mkdir > cat rm wc search open ok 404 more end error none exists empty / .. kv shell"
).split()
NUMBERS = tuple(str(i) for i in range(1, 30))
ENVIRONMENTS = ("kv", "shell", "search")


def tokenizer() -> HfTokenizer:
    """One token a word of the three environments."""
    words = [*SPECIALS, "<unknown>", *COMMANDS, *KEYS, *VALUES, *WORDS, *DIRECTORIES, *FILES, *NAMES, *KINDS, *NUMBERS]
    return word_tokenizer(dict.fromkeys(words), "<unknown>")


def trajectory(kind: str, split: str, index: int, seed: int, echoes: float = 0.1) -> EnvTrajectory:
    """One random episode of a kind of environment; ``echoes``: share of its turns that are echo commands.
    The opening holds its whole state.

    Of the search engine the row that a command names stands with the action, as the state store shows it to a model.
    """
    rng = generator(seed, "world", kind, split, index)
    if kind == "search":
        return _search(index, split, rng)
    environment = KvEnvironment(TURNS) if kind == "kv" else ShellEnvironment(TURNS)
    (task,) = environment.task_set(split, 1, int(rng.integers(2**31)))
    env = environment.make()
    env.reset(task, 0)
    turns = []
    for _ in range(TURNS):
        options = environment.actions(task, env.snapshot())
        action = str(options[int(rng.integers(len(options)))])
        if kind == "kv" and rng.random() < echoes:
            action = f"echo {rng.choice(KEYS)} {rng.choice(VALUES)}"
        turns.append(EnvTurn(action, env.step(action).text))
    return EnvTrajectory(f"{split}-{kind}-{index}", task.id, {}, "", opening(kind, task), tuple(turns))


def _search(index: int, split: str, rng: np.random.Generator) -> EnvTrajectory:
    rows = {str(name): {kind: str(rng.choice(VALUES)) for kind in KINDS} for name in rng.permutation(NAMES)[:4]}
    turns = []
    for _ in range(TURNS // 2):
        name = str(rng.choice([*rows, str(rng.choice(NAMES))]))
        verb = str(rng.choice(["search", "open"]))
        shown = (
            "none" if name not in rows else page(name, rows[name]) if verb == "open" else f"{name} price {rows[name]['price']}"
        )
        row = page(name, rows[name]) if name in rows else "empty"
        turns.append(EnvTurn(f"{verb} {name} {row}", shown))
    return EnvTrajectory(f"{split}-search-{index}", f"search-{index}", {}, "", "search", tuple(turns))


def opening(kind: str, task: Task) -> str:
    """The state of a task in words."""
    if kind == "kv":
        return " ".join(["kv", *(f"{key} {value}" for key, value in task.data["notes"].items())])
    parts = [
        f"{name} {' '.join(f'{file} {text}' for file, text in files.items())}".strip()
        for name, files in task.data["tree"].items()
    ]
    return " ".join(["shell", *parts])


def corpus(split: str, n: int, seed: int, kinds: Sequence[str] = ENVIRONMENTS, echoes: float = 0.1) -> list[EnvTrajectory]:
    """``n`` trajectories, the kinds in turn."""
    return [trajectory(kinds[i % len(kinds)], split, i, seed, echoes) for i in range(n)]


def fresh(width: int, layers: int, seed: int) -> TinyLM:
    """A model of these words, not trained yet."""
    words = tokenizer()
    heads = width // 32
    return TinyLM(
        TinyConfig(words.size, width, layers, heads, heads, 32, 3 * width, context=256, eos=(words.token_id("<|end|>"),)), seed
    )


def streamed(
    rows: int, seed: int, kinds: Sequence[str] = ENVIRONMENTS, mask: str = "none", echoes: float = 0.1
) -> Callable[[int], list[Row]]:
    """The rows of each step, made when it comes: no trajectory is seen twice."""
    template = TagTemplate(tokenizer())

    def batch(step: int) -> list[Row]:
        made = [trajectory(kinds[i % len(kinds)], "train", step * rows + i, seed, echoes) for i in range(rows)]
        return world_rows(made, mask_of(made, "info" if mask == "info" else "none", seed), template, 256)

    return batch


class WorldRecipe(Recipe):
    """The model of the three environments."""

    NAME: ClassVar[str] = "world-model"
    width: int = 64
    layers: int = 3
    rows: int = 24
    steps: int = 8000
    lr: float = 6e-3
    echoes: float = 0.1

    def make(self, report: Report = silent) -> tuple[TinyLM, HfTokenizer]:
        """Next-token loss on what the environments answer."""
        model = fresh(self.width, self.layers, self.seed)
        course = Course(self.lr, self.steps, max(1, self.steps // 20), "cosine", 0.05)
        for step, found in training(model, streamed(self.rows, self.seed, echoes=self.echoes), course, self.seed):
            if step % 100 == 0:
                report(f"step {step}: cross-entropy {found['cross_entropy']:.3f} per token")
        return model.eval(), tokenizer()


def simulated(model: TinyLM) -> SimulatedEnvironment:
    """The model as an environment."""
    words = tokenizer()
    template = TagTemplate(words)
    engine = LocalModel(model, words, template=template, name="world", max_sequences=64)
    return SimulatedEnvironment(ModelPredictor(engine, template, Sampling(temperature=0.0, max_tokens=20)))


def measured(
    model: TinyLM, test: Sequence[EnvTrajectory], known: Sequence[EnvTrajectory] = (), both: bool = True
) -> dict[str, Any]:
    """Exact match on ``test``; with ``known`` that of the baselines, which answer from it."""
    arms = [baseline(name, known) for name in BASELINES] if known else []
    found, results = compared(simulated(model), arms, test, ("forced", "closed") if both else ("forced",))
    return {
        "forced": found.first.exact.value,
        "closed": None if found.closed is None else found.closed.exact.value,
        "by tool": {name: own.value for name, own in found.first.by_tool.items()},
        "drift": codec.to_json(found.drift),
        "baselines": {name: own.exact.value for name, own in found.baselines.items()},
        "without echo": without_echo(results["forced"]),
    }


def without_echo(results: Sequence[TurnResult]) -> float:
    """Exact match of the turns that are no echo."""
    return float(np.mean([one.exact for one in results if one.kind != "echo"]))


def fidelity(seed: int, recipe: dict[str, Any], test: int, known: int) -> dict[str, Any]:
    """Train the model, and measure it on worlds it has not seen."""
    own = WorldRecipe(seed=seed, **recipe)
    return measured(own.model(), corpus("eval", test, seed), corpus("train", known, seed))


def masking(seed: int, recipe: dict[str, Any], base: int, steps: int, echoes: float, test: int, lr: float) -> dict[str, Any]:
    """From a base that copies already: ``steps`` further ones with the paper's masks, without,
    and without for as many trained tokens.

    The base and all arms see key-value servers of which ``echoes`` of the turns are echoes.
    """
    start = WorldRecipe(seed=seed, **{**recipe, "steps": base})
    checks = corpus("eval", test, seed, ("kv",), echoes)
    found: dict[str, Any] = {"base": measured(start.model(), checks, both=False)}
    masked_tokens = 0
    for arm in ("masked", "unmasked", "equal tokens"):
        model = start.model()
        most = None if arm != "equal tokens" else masked_tokens
        tokens = 0
        batch = streamed(start.rows, seed + 1000, ("kv",), "info" if arm == "masked" else "none", echoes)
        done = 0
        for done, one in training(model, batch, Course(lr, steps, 10, "linear", 0.1), seed):  # noqa: B007
            tokens += int(one["tokens"])
            if most is not None and tokens >= most:
                break
        masked_tokens = tokens if arm == "masked" else masked_tokens
        found[arm] = {**measured(model.eval(), checks, both=False), "tokens": tokens, "steps": done}
    return found
