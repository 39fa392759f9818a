"""What predicts the next observation: a model, a table of what was recorded, or the three simple baselines a model must beat."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

from ramify.base.errors import InfrastructureError, RamifyError, UserError, nearest
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.plugins import source_of
from ramify.methods.world_model.algorithm import TAG, extract
from ramify.methods.world_model.store import read_calls
from ramify.methods.world_model.trajectories import EnvTrajectory
from ramify.model.chat import ChatTemplate
from ramify.model.protocol import Model, Sampling, context_of
from ramify.model.rendered import laid_out
from ramify.rollout.sampler import FailurePolicy, Sampler
from ramify.score.judge import reply_to
from ramify.trace.message import Message

Layout = Literal["plain", "tags"]
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known when an observation is to be predicted."""

    task: str
    state: str
    """The task's data as text: the environment's hidden state at the start, where the task holds it."""
    opening: str
    """The first observation."""
    turns: tuple[tuple[str, str], ...]
    """Actions and observations so far."""
    action: str
    excerpt: str = ""
    """Rows of the state store that concern the action."""
    facts: tuple[str, ...] = ()
    """Texts that the observation must hold."""
    seed: int = 0

    @property
    def hash(self) -> str:
        """Hash of all that may decide the answer; equal situations are answered equally."""
        return stable_hash(
            "situation",
            canonical_json([self.task, self.state, self.opening, self.turns, self.action, self.excerpt, self.facts, self.seed]),
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """An observation as a world model wrote it. ``text`` is None where it gave none, and ``why`` says so."""

    text: str | None
    reply: str = ""
    """The whole reply."""
    why: str = ""
    dropped: int = 0
    """Oldest turns that did not fit the model's context."""


@runtime_checkable
class Predictor(Protocol):
    """Predicts observations."""

    name: str

    @property
    def identity(self) -> str:
        """Stable hash of all that can change a prediction."""
        ...

    async def predict(self, situation: Situation, attempt: int = 0) -> Prediction:
        """One observation; ``attempt`` counts the tries at one situation. Raises InfrastructureError where the model fails."""
        ...


def initial_state(data: Mapping[str, Any]) -> str:
    """A task's data as compact text, without the split and what the agent is shown anyway."""
    kept = {name: value for name, value in data.items() if name not in ("opening", "split", "prompt", "answer", "tables")}
    return canonical_json(kept) if kept else ""


def tool_of(action: str) -> str:
    """The name of an action's first tool or its first word."""
    calls = read_calls(action, False)
    return calls[0].name if calls else ""


# -- models


@dataclass(frozen=True, slots=True)
class Instructions:
    """What a world model that was not trained on the environment is told: the five parts of the paper's system prompt."""

    task: str = (
        "You are the environment of a language-model agent. Reply with what the environment shows after the agent's last action."
    )
    tools: Sequence[Mapping[str, Any]] = ()
    demonstrations: str = ""
    control: str = ""
    """Further instructions. Faults, pages and cut snippets are the work of ``control`` in code, not of these."""

    def render(self, situation: Situation) -> str:
        """The system message of the layout ``tags``."""
        parts = [self.task]
        if self.tools:
            parts.append("Tools:\n" + "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in self.tools))
        if situation.state or situation.opening:
            parts.append("Initial state:\n" + "\n".join(filter(None, [situation.state, situation.opening])))
        if self.demonstrations:
            parts.append("Examples:\n" + self.demonstrations)
        parts.append(
            "Predict only the environment, never the agent's next action. Do not reveal what the agent has not yet found out. "
            f"Write the observation between <{TAG}> and </{TAG}>; nothing outside of it counts. {self.control}".strip()
        )
        return "\n\n".join(parts)


def world_messages(situation: Situation, layout: Layout, instructions: Instructions, dropped: int = 0) -> list[Message]:
    """The chat a world model continues; the ``dropped`` oldest turns are left out, what opens it never is."""
    if layout == "plain":
        opens = "\n".join(filter(None, [situation.state, situation.opening]))
        made = [Message("system", opens)]
    else:
        made = [Message("system", instructions.render(situation))]
    for number, (action, observation) in enumerate(situation.turns[dropped:], dropped + 1):
        made += [
            Message("user", _action(action, number, layout)),
            Message("assistant", observation if layout == "plain" else f"<{TAG}>\n{observation}\n</{TAG}>"),
        ]
    last = _action(situation.action, len(situation.turns) + 1, layout)
    if situation.excerpt:
        last += f"\n{situation.excerpt}" if layout == "plain" else f"\n\n**State:**\n{situation.excerpt}"
    if situation.facts and layout == "tags":
        last += "\n\nThe observation must hold: " + "; ".join(situation.facts)
    return [*made, Message("user", last)]


def _action(action: str, number: int, layout: Layout) -> str:
    return action if layout == "plain" else f"### Turn {number}\n\n**Action:**\n```json\n{action}\n```"


class ModelPredictor:
    """A model as the environment. ``plain``: its whole reply is the observation, as one trained here writes it; ``tags``: only
    what stands in the last tag outside its thoughts is, and a reply without one is a failure."""

    def __init__(
        self,
        model: Model,
        template: ChatTemplate | None = None,
        sampling: Sampling | None = None,
        layout: Layout = "plain",
        instructions: Instructions | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.template, self.layout = model, template, layout
        self.instructions = instructions or Instructions()
        stops = () if template is None else tuple(template.stop_tokens)
        self.sampling = replace(sampling or Sampling(temperature=0.0, max_tokens=256), stop_tokens=stops)
        self.sampler = Sampler(model, seed, retries=FailurePolicy({}))
        self.name = f"model:{model.identity.name}"

    @property
    def identity(self) -> str:
        """Hash of weights, layout, instructions and settings."""
        told = self.instructions
        return stable_hash(
            "world model", self.model.identity.weights, self.layout, told.task, told.demonstrations, told.control,
            canonical_json(list(told.tools)), canonical_json(self.sampling.to_json()),
        )  # fmt: skip

    async def predict(self, situation: Situation, attempt: int = 0) -> Prediction:
        """See :class:`Predictor`."""
        messages, dropped = self._fitting(situation)
        position = ("world-model", situation.hash, attempt)
        # a second try at temperature 0 would be the first again
        settings = self.sampling if not attempt or self.sampling.temperature else replace(self.sampling, temperature=1.0)
        completion = await reply_to(self.sampler, self.template, messages, settings, position)
        if completion.stop == "length":
            return Prediction(None, completion.text, f"it did not end within {settings.max_tokens} tokens", dropped)
        text: str | None = completion.text
        if self.layout == "tags":
            text = extract(completion.text)
        else:
            text = self._unmarked(completion.text)
        return Prediction(text, completion.text, "" if text is not None else f"it holds no <{TAG}>", dropped)

    def _unmarked(self, reply: str) -> str:
        """The reply without the template's end mark, where the engine decodes it."""
        if self.template is not None and self.template.stop_tokens:
            end = self.template.tokenizer.decode([self.template.stop_tokens[0]])
            reply = reply.removesuffix(end)
        return reply

    def _fitting(self, situation: Situation) -> tuple[list[Message], int]:
        """The chat, without as many of its oldest turns as leave room for a reply. Raises UserError where nothing fits."""
        most = context_of(self.model)
        for dropped in range(len(situation.turns) + 1):
            messages = world_messages(situation, self.layout, self.instructions, dropped)
            if most is None or self.template is None:
                return messages, dropped
            length = len(laid_out(self.template, [(one.role, one.text) for one in messages]))
            if length + min(self.sampling.max_tokens, most // 4) <= most:
                return messages, dropped
        raise UserError(
            f"the state and one action of task '{situation.task}' are longer than the model's context of {most} tokens"
        )


# -- recorded answers, and the baselines


class TablePredictor:
    """The recorded observation after the same actions in the same task:
    exact where it was recorded, a failure where it was not."""

    name = "table"

    def __init__(self, trajectories: Iterable[EnvTrajectory]) -> None:
        self._known: dict[tuple[str, tuple[str, ...]], str] = {}
        for one in trajectories:
            for i, turn in enumerate(one.turns, 1):
                self._known.setdefault((one.task, one.actions[:i]), turn.whole)
        self.identity = stable_hash(
            "table", canonical_json(sorted([task, list(acts), text] for (task, acts), text in self._known.items()))
        )

    async def predict(self, situation: Situation, attempt: int = 0) -> Prediction:
        """See :class:`Predictor`."""
        actions = (*(action for action, _ in situation.turns), situation.action)
        text = self._known.get((situation.task, actions))
        return Prediction(text, text or "", "" if text is not None else "these actions were not recorded in this task")


class CopyPredictor:
    """The last observation again."""

    name = identity = "copy"

    async def predict(self, situation: Situation, attempt: int = 0) -> Prediction:
        """See :class:`Predictor`."""
        text = situation.turns[-1][1] if situation.turns else situation.opening
        return Prediction(text, text)


class MajorityPredictor:
    """What the tool answered most often in the recorded turns."""

    name = "majority"

    def __init__(self, trajectories: Sequence[EnvTrajectory]) -> None:
        said: dict[str, Counter[str]] = defaultdict(Counter)
        for one in trajectories:
            for turn in one.turns:
                said[tool_of(turn.action)][turn.whole] += 1
                said[""][turn.whole] += 1
        self._best = {tool: min(found, key=lambda text: (-found[text], text)) for tool, found in said.items()}
        self.identity = stable_hash("majority", canonical_json(self._best))

    async def predict(self, situation: Situation, attempt: int = 0) -> Prediction:
        """See :class:`Predictor`."""
        text = self._best.get(tool_of(situation.action), self._best[""])
        return Prediction(text, text)


@dataclass(slots=True)
class _Case:
    action: frozenset[str]
    around: frozenset[str]
    text: str


@dataclass
class RetrievalPredictor:
    """The answer to the nearest recorded (action, state) pair:
    same tool, then most shared words of the action, then of what was known."""

    trajectories: Sequence[EnvTrajectory]
    most: int = 2000
    """Recorded turns of each tool that are searched, evenly spread."""
    name: str = "retrieval"
    _cases: dict[str, list[_Case]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for one in self.trajectories:
            known = words_of(f"{initial_state(one.data)} {one.opening}")
            for turn in one.turns:
                self._cases[tool_of(turn.action)].append(_Case(words_of(turn.action), known, turn.whole))
                known = known | words_of(f"{turn.action} {turn.observation}")
        for tool, cases in self._cases.items():
            self._cases[tool] = cases[:: -(-len(cases) // self.most)]
        self.identity = stable_hash(
            "retrieval", canonical_json(sorted(turn.whole for one in self.trajectories for turn in one.turns))
        )

    async def predict(self, situation: Situation, attempt: int = 0) -> Prediction:
        """See :class:`Predictor`."""
        said = " ".join(f"{action} {observation}" for action, observation in situation.turns)
        action, around = words_of(situation.action), words_of(f"{situation.state} {situation.opening} {said}")
        cases = self._cases.get(tool_of(situation.action)) or [one for each in self._cases.values() for one in each]
        best = max(cases, key=lambda one: (_alike(one.action, action), _alike(one.around, around)))
        return Prediction(best.text, best.text)


def words_of(text: str) -> frozenset[str]:
    """The words of a text, lower-cased."""
    return frozenset(_WORD.findall(text.lower()))


def _alike(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b) if a or b else 1.0


class FunctionPredictor:
    """A function of your own as the environment: ``function(situation)`` returns the observation, or None where it has none."""

    def __init__(self, function: Callable[[Situation], str | None], spec: str) -> None:
        self._function, self.name = function, spec
        self.identity = stable_hash("predict", spec, source_of(function))

    async def predict(self, situation: Situation, attempt: int = 0) -> Prediction:
        """See :class:`Predictor`. Raises InfrastructureError("env") where the function fails or returns something else."""
        try:
            text = self._function(situation)
        except RamifyError:
            raise
        except Exception as error:  # code of the user's own may raise anything
            raise InfrastructureError("env", f"{self.name} raised {type(error).__name__}: {error}") from error
        if text is not None and not isinstance(text, str):
            raise InfrastructureError("env", f"{self.name} returned a {type(text).__name__}, not a text")
        return Prediction(text, text or "", "" if text is not None else f"{self.name} returned None")


BASELINES = ("copy", "majority", "retrieval")


def baseline(name: str, trajectories: Sequence[EnvTrajectory]) -> Predictor:
    """A baseline, or ``table``, over recorded trajectories. Raises UserError with the nearest name where there is none such."""
    match name:
        case "copy":
            return CopyPredictor()
        case "majority":
            return MajorityPredictor(trajectories)
        case "retrieval":
            return RetrievalPredictor(trajectories)
        case "table":
            return TablePredictor(trajectories)
    raise UserError(f"unknown baseline '{name}' ({nearest(name, [*BASELINES, 'table'])})")
