"""A simulated environment: code keeps the state and decides what goes wrong, a predictor writes the rest, validators check it.

``simulated:FOLDER`` (what ``ramify world-model train`` wrote) or ``simulated:FILE.toml`` is an environment like any other:
rollouts, forks, trees and ``ramify improve`` use it. Where the predictor fails,
the attempt ends in an infrastructure failure; nothing is made up for it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import Field

from ramify.base.config import Config, load
from ramify.base.errors import InfrastructureError, RamifyError, UserError, nearest
from ramify.base.files import read_record, read_regular
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.plugins import own_function, own_path
from ramify.base.registry import register
from ramify.base.seeds import generator
from ramify.env.protocol import Env, Observation, Task, TaskSet, read_task_set
from ramify.env.schemas import check_call, fits, schema_fault
from ramify.env.task_sets import SPLITS, known_split
from ramify.env.tools import cut, describe
from ramify.methods.world_model.algorithm import invented
from ramify.methods.world_model.answers import KeptAnswers
from ramify.methods.world_model.control import Controls, EnvControl, Paginate, PlainControl, read_controls, unpaged
from ramify.methods.world_model.predict import (
    BASELINES,
    FunctionPredictor,
    Instructions,
    Layout,
    ModelPredictor,
    Prediction,
    Predictor,
    Situation,
    baseline,
    initial_state,
    words_of,
)
from ramify.methods.world_model.store import (
    EnvCall,
    StateStore,
    StoreAnswer,
    read_calls,
    read_effects,
)
from ramify.methods.world_model.trajectories import LOST, OVER, WON, read_trajectories, split_end
from ramify.trace.message import write_call

T = TypeVar("T")
FILE = "world.toml"
"""The file in a world's folder that describes it."""
KEPT = 100_000
"""Answers that are remembered."""
Verify = Callable[[Task, str, Mapping[str, Any]], Any]
"""(task, last action, state) -> True or a score from 1 (won), False or a score below (lost, where the episode is over), None
(undecided). ``state`` holds ``tables`` and ``turns``, a list of (action, observation)."""


class SimulationError(InfrastructureError):
    """A predictor gave no usable observation: the attempt cannot go on, and is counted as neither success nor failure."""

    def __init__(self, message: str) -> None:
        super().__init__("env", message)


class SimulationSettings(Config):
    """A simulated environment, as its TOML file or the options of ``serve`` describe it."""

    BASIC: ClassVar[str] = "model tools state control tasks verify"
    model: str = ""
    """Who predicts: hf:FOLDER, chat:MODEL@URL, ...; table:RUN, retrieval:RUN, majority:RUN; copy; predict:FILE.py:FUNCTION."""
    tools: str = ""
    """JSON file with the tools, in OpenAI's form; empty: actions are words."""
    state: str = ""
    """JSON file with the tables, {table: {key: row}}, and under "effects" what tools do to them."""
    control: str = ""
    """TOML file with [[control]] tables: fault, rate-limit, paginate, stingy, partial, latency."""
    tasks: str = ""
    """JSON lines: id, opening or prompt, and the task's data."""
    verify: str = ""
    """FILE.py:FUNCTION of (task, answer, state), or model: the predictor's own word."""
    layout: str = "tags"
    """plain: the whole reply is the observation, as a model trained here writes it; tags: only what stands in the tag."""
    system: str = ""
    """Instructions shown to the agent."""
    instruction: str = ""
    """Instructions to the predictor, besides those of the layout tags."""
    role: str = "user"
    """Role of observations without tools: user or tool."""
    max_turns: int = Field(16, ge=1)
    """Turns after which an episode is cut."""
    temperature: float = Field(0.0, ge=0)
    """Of the predictor."""
    max_tokens: int = Field(256, ge=1)
    """Longest observation."""
    retries: int = Field(2, ge=0)
    """Further tries where a validator refuses an observation."""
    cache: str = ""
    """Folder (a run) that keeps every answer, so that equal histories are answered equally by later processes, too."""


@dataclass(frozen=True, slots=True)
class WorldRules:
    """What code decides in a simulated environment, besides what is predicted. Everything may be left out."""

    tools: Sequence[Mapping[str, Any]] = ()
    """In OpenAI's form; none: actions are words."""
    store: StateStore = field(default_factory=StateStore)
    """The tables, and what tools do to them: applied before the predictor is asked. Each episode has a copy."""
    controls: Sequence[EnvControl] = ()
    """Faults, pages and limits, before and after the predictor."""
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Tool -> JSON schema of its answers."""
    verify: Verify | str = ""
    """Decides success, from the state and never from the predicted text: without it no attempt succeeds. "model" believes the
    predictor's own mark of success, which `ramify world-model audit` checks."""
    system: str = ""
    """Instructions shown to the agent; empty: the tools, and how to call them."""
    role: str = "user"
    """Of observations without tools: user or tool."""
    max_turns: int = 16
    """Turns after which an episode is cut."""
    retries: int = 2
    """Further tries where a validator refuses an observation."""
    seeded: bool = False
    """The predictor samples: each seed gets an answer of its own. Else one answer serves all seeds."""

    def __post_init__(self) -> None:
        """Raises UserError on another word than "model" for ``verify``, and where an effect, an output or a control names a tool
        that is not one of ``tools``: it would never do anything."""
        if isinstance(self.verify, str) and self.verify not in ("", "model"):
            raise UserError(f"verify is a function or 'model', not '{self.verify}'")
        _named_tools(self.tools, self.store, self.controls, self.outputs)


class SimulatedEnvironment:
    """An environment whose observations are predicted, by ``predictor`` under ``rules``.

    Equal situations get equal answers: in one process always, and with ``cache``, a folder that keeps them, in every one.
    """

    blocking = True

    def __init__(
        self,
        predictor: Predictor,
        rules: WorldRules | None = None,
        *,
        name: str = "simulated",
        tasks: Iterable[Task] = (),
        cache: Path | str | None = None,
    ) -> None:
        self.predictor, self.rules, self.name = predictor, rules or WorldRules(), name
        self.tools, self.max_turns = [_paged(tool, self.rules.controls) for tool in self.rules.tools], self.rules.max_turns
        self.system = describe(self.tools) if self.tools and not self.rules.system else self.rules.system
        self._tasks = tuple(tasks)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._known: dict[str, asyncio.Future[Prediction]] = {}
        self.cache = None if cache is None else Path(cache)
        self.asked = 0
        """Predictions that were made, repeated and kept ones not counted."""

    def make(self) -> Env:
        """A fresh episode."""
        return SimulatedEnv(self)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """At most ``n`` of the tasks of a split, chosen by ``seed``. Raises UserError where there is none."""
        known_split(split)
        mine = [task for task in self._tasks if _split(task) == split]
        if not mine:
            raise UserError(
                f"the environment '{self.name}' has no task of the split '{split}': its tasks are what was recorded, or --tasks"
            )
        mine.sort(key=lambda task: stable_hash("panel", seed, task.id))
        return TaskSet.of(mine[:n])

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All its tasks."""
        return self._tasks

    def task(self, name: str | None = None, prompt: str = "") -> Task:
        """The task of that id, else the first; where there are none, one that begins with ``prompt``.
        Raises UserError with the nearest id."""
        known = {one.id: one for one in self._tasks} or {"served": Task("served", {"prompt": prompt})}
        if name is not None and name not in known:
            raise UserError(f"there is no task '{name}' ({nearest(name, known)})")
        return known[min(known) if name is None else name]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for ``work`` in this environment's own event loop, where its predictor lives."""
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="ramify-world", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def predicting(self, predictor: Predictor) -> SimulatedEnvironment:
        """The same environment with another predictor and without a verifier: for comparisons."""
        return SimulatedEnvironment(predictor, replace(self.rules, verify=""), name=self.name, cache=self.cache)

    async def predicted(self, situation: Situation, attempt: int) -> Prediction:
        """The answer to a situation, asked for once: equal situations get equal answers, from any model. Runs in :meth:`run`."""
        key = f"{situation.hash}:{attempt}"
        if key not in self._known:
            if len(self._known) >= KEPT:
                self._known.pop(next(iter(self._known)))
            self._known[key] = asyncio.ensure_future(self._answered(situation, attempt))
        try:
            return await asyncio.shield(self._known[key])
        except BaseException:
            self._known.pop(key, None)  # a failure is not an answer: the next one asks again
            raise

    async def _answered(self, situation: Situation, attempt: int) -> Prediction:
        """The kept answer, else the predictor's, which is then kept."""
        if self.cache is None:
            self.asked += 1
            return await self.predictor.predict(situation, attempt)
        kept, key = KeptAnswers.at(self.cache), stable_hash("answer", self.predictor.identity, situation.hash, attempt)
        found = await kept.get(key)
        if found is None:
            self.asked += 1
            found = await self.predictor.predict(situation, attempt)
            await kept.put(key, found)
        return found


def _split(task: Task) -> str:
    split = task.data.get("split")
    return str(split) if split in SPLITS else ("train", "train", "eval", "tune")[int(stable_hash("split", task.id)[:8], 16) % 4]


def _paged(tool: Mapping[str, Any], controls: Sequence[EnvControl]) -> dict[str, Any]:
    """The tool, with an argument ``page`` where its answers come in pages: else no agent could ask for the second."""
    function = tool["function"]
    if not any(isinstance(one, Paginate) and one.concerns(EnvCall(str(function["name"]))) for one in controls):
        return dict(tool)
    schema = function.get("parameters") or {"type": "object"}
    page = {"type": "integer", "description": "Which page of a long answer, from 1."}
    return {
        **tool,
        "function": {**function, "parameters": {**schema, "properties": {"page": page, **(schema.get("properties") or {})}}},
    }


def _named_tools(
    tools: Sequence[Mapping[str, Any]], store: StateStore, controls: Sequence[EnvControl], outputs: Mapping[str, Any]
) -> None:
    """Raises UserError where an effect, an output or a control names a tool that is none of ``tools``: it would never do
    anything."""
    names = [str(tool["function"]["name"]) for tool in tools]
    if not names:  # actions are words: any of them may be a command
        return
    for what, given in (("an effect", store.effects), ("an output schema", outputs)):
        for name in given:
            if name not in names:
                raise UserError(f"{what} names the tool '{name}', and there is none ({nearest(name, names)})")
    for i, one in enumerate(controls, 1):
        for name in map(str.strip, one.tool.split(",") if isinstance(one, PlainControl) else ()):
            if name not in names and not set("*?[") & set(name):  # a pattern may match nothing
                kind = type(one).__name__
                raise UserError(f"control {i} ({kind}) concerns the tool '{name}', and there is none ({nearest(name, names)})")


@dataclass(frozen=True, slots=True)
class AnswerSource:
    """Who made an answer (code, control, model, or mixed), and what is known of how."""

    by: str
    invented: tuple[str, ...] = ()
    """Fields that nothing known before held."""
    dropped: int = 0
    """Oldest turns that were left out."""
    tries: int = 0
    """0 where the first try held."""
    refused: bool = False

    def data(self) -> dict[str, Any]:
        """As an observation holds it: what there is."""
        found = {"by": self.by, "invented": list(self.invented), "dropped": self.dropped, "tries": self.tries}
        return {name: value for name, value in found.items() if value}


class SimulatedEnv:
    """One episode of a :class:`SimulatedEnvironment`. Its snapshot is JSON: the turns, the tables, what the controls remember."""

    def __init__(self, environment: SimulatedEnvironment) -> None:
        self.environment = environment
        self.system, self.max_turns = environment.system, environment.max_turns
        self._task: Task | None = None
        self._seed = 0
        self._store = environment.rules.store.copy()
        self._controls = Controls(environment.rules.controls)
        self._turns: list[tuple[str, str]] = []
        self._over = ""

    def reset(self, task: Task, seed: int) -> Observation:
        """Start ``task``. Raises UserError where it says neither how it opens nor what is asked."""
        opening = next((task.data[name] for name in ("opening", "prompt", "question", "text") if name in task.data), None)
        if not isinstance(opening, str):
            raise UserError(
                f"task '{task.id}' has no text: give it an 'opening' (what the environment shows first) or a 'prompt'"
            )
        tables = task.data.get("tables")
        if tables is not None and not (
            isinstance(tables, Mapping) and all(isinstance(rows, Mapping) for rows in tables.values())
        ):
            raise UserError(f"task '{task.id}': 'tables' are {{table: {{key: row}}}}")
        self._task, self._seed = task, seed
        self._store.reset(tables)
        self._controls = Controls(self.environment.rules.controls)
        self._turns, self._over = [], ""
        return Observation(opening)

    def step(self, action: str) -> Observation:
        """What the environment answers. Raises SimulationError where no try gave a usable observation."""
        return self.environment.run(self.answer(action))

    def call(self, name: str, /, **arguments: Any) -> Observation:
        """As :meth:`step`, of one tool call."""
        return self.step(write_call(name, arguments))

    async def answer(self, action: str) -> Observation:
        """As :meth:`step`; runs in the environment's own loop."""
        if self._task is None or self._over:
            raise InfrastructureError("env", "step without a running episode")
        tools = self.environment.tools
        calls = read_calls(action, bool(tools))
        if not calls:
            return self._ended(action, OVER, Observation("Your answer was taken."))
        shown = [await self._call(call, action if len(calls) == 1 and not call.written else call.text) for call in calls]
        text = (
            shown[0][0]
            if len(shown) == 1
            else "\n".join(f"{i}. {c.name}: {one[0]}" for i, (c, one) in enumerate(zip(calls, shown, strict=True), 1))
        )
        made = _merged([one[1] for one in shown])
        data = made.data()
        if (seconds := self._controls.seconds) is not None:
            data["seconds"] = round(seconds, 3)
        mark = next((one[2] for one in shown if one[2]), "")
        role = "tool" if tools else self.environment.rules.role
        return self._ended(action, mark, Observation(text, valid=not made.refused, role=role, data=data))

    async def _call(self, call: EnvCall, action: str) -> tuple[str, AnswerSource, str]:
        """One call: what is shown, who made it, and the mark of an end."""
        turn, mark = len(self._turns), ""
        made = AnswerSource("code")
        if wrong := call.error or check_call(call.name, call.arguments, self.environment.tools):
            text, made = f"error: {wrong}", AnswerSource("code", refused=True)
        elif (instead := self._controls.before(call, turn, self._chances(turn, 0))) is not None:
            text, made = instead, AnswerSource("control")
        else:
            paged = any(isinstance(one, Paginate) and one.concerns(call) for one in self.environment.rules.controls)
            inner = unpaged(call)[0] if paged else call
            asked = action if inner == call else inner.text
            known = self._store.apply(inner)
            if known is None or known.text is None:
                text, mark, made = await self._written(inner, asked, known)
            else:
                text = known.text
            text = self._controls.after(call, text, turn, self._chances(turn, 1))
        text = cut(text)
        self._turns.append((action, text))
        return text, made, mark

    async def _written(self, call: EnvCall, action: str, known: StoreAnswer | None) -> tuple[str, str, AnswerSource]:
        """What the predictor writes, checked."""
        assert self._task is not None
        state, opening = initial_state(self._task.data), str(self._task.data.get("opening", self._task.data.get("prompt", "")))
        facts = known.facts if known is not None else ()
        excerpt = "\n".join(facts) if facts else self._store.excerpt(call) if self._store.tables else ""
        luck = self._seed if self.environment.rules.seeded else 0  # else the predictor has none, and one answer serves all seeds
        situation = Situation(self._task.id, state, opening, tuple(self._turns), action, excerpt, facts, luck)
        why = ""
        for attempt in range(self.environment.rules.retries + 1):
            found = await self.environment.predicted(situation, attempt)
            if found.text is None:
                why = found.why
                continue
            text, mark = split_end(found.text)
            why = self._refused(call, text, situation)
            if not why:
                return text, mark, self._about(text, situation, found, attempt)
        raise SimulationError(
            f"no observation after '{call.name}' at turn {len(self._turns) + 1} of task '{self._task.id}': {why}"
        )

    def _refused(self, call: EnvCall, text: str, situation: Situation) -> str:
        """Why an observation cannot stand, one clause; "" where it can."""
        schema = self.environment.rules.outputs.get(call.name)
        if schema is not None:
            try:
                if not fits(json.loads(text), schema):
                    return f"the answer of '{call.name}' does not fit its schema"
            except (ValueError, RecursionError):
                return f"the answer of '{call.name}' is not JSON"
        lost = [fact for fact in situation.facts if not words_of(fact) <= words_of(text)]
        if lost:
            return f"it leaves out what the state holds: {lost[0][:80]}"
        assert self._task is not None
        secret = self._task.data.get("answer")
        if isinstance(secret, str) and secret and self._store.tables:
            before = " ".join(
                [situation.opening, situation.action, situation.excerpt, *(word for turn in self._turns for word in turn)]
            )
            if secret.lower() in text.lower() and secret.lower() not in before.lower():
                return "it shows the task's answer before the agent has earned it"
        return ""

    def _about(self, text: str, situation: Situation, found: Prediction, attempt: int) -> AnswerSource:
        said = " ".join(word for turn in situation.turns for word in turn)
        known = " ".join(
            [
                situation.state,
                situation.opening,
                situation.excerpt,
                situation.action,
                said,
                canonical_json(self.environment.tools),
            ]
        )
        new = tuple(invented(text, known)[:20])
        return AnswerSource("model", new, found.dropped, attempt + 1 if attempt else 0)

    def _ended(self, action: str, mark: str, seen: Observation) -> Observation:
        """The observation with what the verifier says of the state now."""
        assert self._task is not None
        verify, outcome, reward = self.environment.rules.verify, None, 0.0
        if callable(verify):
            try:
                value = verify(self._task, action, {"tables": self._store.snapshot(), "turns": list(self._turns)})
            except RamifyError:
                raise
            except Exception as error:  # a verifier of the user's own may raise anything
                raise InfrastructureError("scorer", f"the verifier failed: {type(error).__name__}: {error}") from error
            if value is not None:
                won = float(value) >= 1
                mark = mark or (WON if won else "")
                outcome, reward = (won, float(value)) if mark else (None, 0.0)
        elif verify == "model" and mark in (WON, LOST):
            outcome, reward = mark == WON, float(mark == WON)
        self._over = mark
        return Observation(seen.text, reward, bool(mark), False, outcome, seen.valid, seen.role, seen.data)

    def _chances(self, turn: int, when: int) -> list[Any]:
        """One generator a control, keyed by task, seed and call."""
        assert self._task is not None
        controls = self.environment.rules.controls
        return [generator(self._seed, "control", self._task.id, turn, when, i) for i in range(len(controls))]

    @property
    def turns(self) -> int:
        """Calls that were answered so far."""
        return len(self._turns)

    @property
    def ended(self) -> str:
        """The mark with which the episode ended; "" while it continues."""
        return self._over

    def correct(self, start: int, action: str, observation: str) -> None:
        """Replace the turns from ``start`` on by what really happened: the next prediction is made on true history."""
        self._turns[start:] = [(action, observation)]
        self._over = ""

    def state(self) -> dict[str, Any]:
        """The tables and the turns, as a verifier sees them."""
        return {"tables": self._store.snapshot(), "turns": list(self._turns)}

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON, without the task, which ``reset`` has given."""
        record = {
            "turns": [list(turn) for turn in self._turns],
            "tables": self._store.tables,
            "memory": self._controls.memory,
            "over": self._over,
        }
        found: dict[str, Any] = json.loads(canonical_json(record))
        return found

    def restore(self, snapshot: Any) -> None:
        """Go back to ``snapshot``."""
        record = json.loads(canonical_json(snapshot))
        self._turns = [(str(action), str(text)) for action, text in record["turns"]]
        self._store.restore(record["tables"])
        self._controls = Controls(self.environment.rules.controls, record["memory"])
        self._over = record["over"]

    def key(self) -> str:
        """The state itself, canonically: equal keys of one task and seed have equal futures."""
        return stable_hash("simulated", canonical_json(self.snapshot()))


def _merged(each: Sequence[AnswerSource]) -> AnswerSource:
    """What is known of the calls of one action together; of counts the last that there is."""
    by = {one.by for one in each}
    return AnswerSource(
        by=each[0].by if len(by) == 1 else "mixed",
        invented=tuple(name for one in each for name in one.invented),
        dropped=next((one.dropped for one in reversed(each) if one.dropped), 0),
        tries=next((one.tries for one in reversed(each) if one.tries), 0),
        refused=any(one.refused for one in each),
    )


# -- from a file


@register("env", "simulated")
def simulated(argument: str = "") -> SimulatedEnvironment:
    """``simulated:FOLDER`` that `ramify world-model train` wrote, or ``simulated:FILE.toml``.
    Raises UserError where there is neither."""
    if not argument:
        raise UserError(
            "the environment 'simulated' needs a folder of `ramify world-model train`, or a TOML file: simulated:FOLDER"
        )
    path = Path(argument).expanduser()
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"there is no simulated environment {argument}: a folder holds a {FILE}")
    return from_settings(load(SimulationSettings, [file]), file.parent, f"simulated:{argument}")


def from_settings(settings: SimulationSettings, folder: Path = Path(), name: str = "simulated") -> SimulatedEnvironment:
    """The environment that settings describe; relative paths in them begin at ``folder``.
    Raises UserError naming the file or field."""
    tools = _tools(folder / settings.tools) if settings.tools else []
    if settings.role not in ("user", "tool"):
        raise UserError(f"role is user or tool, not '{settings.role}'")
    tables, effects, outputs = _state(folder / settings.state) if settings.state else ({}, (), {})
    tasks = read_task_set(folder / settings.tasks) if settings.tasks else ()
    rules = WorldRules(
        tools=tools,
        store=StateStore(tables, effects),
        controls=read_controls(folder / settings.control) if settings.control else (),
        outputs=outputs,
        verify=_verifier(settings.verify, folder),
        system=settings.system,
        role=settings.role,
        max_turns=settings.max_turns,
        retries=settings.retries,
        seeded=settings.temperature > 0,
    )
    cache = folder / Path(settings.cache).expanduser() if settings.cache else None
    return SimulatedEnvironment(_predictor(settings, folder, tools), rules, name=name, tasks=tasks, cache=cache)


def _predictor(settings: SimulationSettings, folder: Path, tools: Sequence[Mapping[str, Any]]) -> Predictor:
    from ramify.engine.named import find_model
    from ramify.model.protocol import sampling_of

    kind, _, argument = settings.model.partition(":")
    if settings.layout not in ("plain", "tags"):
        raise UserError(f"layout is plain or tags, not '{settings.layout}' ({nearest(settings.layout, ['plain', 'tags'])})")
    if not settings.model:
        raise UserError(
            "a simulated environment needs a model: hf:FOLDER, chat:MODEL@URL, or table:RUN, retrieval:RUN, majority:RUN, copy"
        )
    if kind in (*BASELINES, "table"):
        return baseline(kind, [] if kind == "copy" else read_trajectories(folder / argument))
    if kind == "predict":
        return FunctionPredictor(own_function(_beside(argument, folder), "situation"), argument)
    layout: Layout = "plain" if settings.layout == "plain" else "tags"
    spec = f"{kind}:{folder / argument}" if kind in ("hf", "gguf") else settings.model
    model, template = find_model(spec)
    sampling = sampling_of(model, temperature=settings.temperature, max_tokens=settings.max_tokens)
    return ModelPredictor(model, template, sampling, layout, Instructions(tools=tools, control=settings.instruction))


def _verifier(spec: str, folder: Path) -> Verify | str:
    return spec if spec in ("", "model") else own_function(_beside(spec, folder), "task", "answer", "state")


def _beside(spec: str, folder: Path) -> str:
    """``FILE.py:NAME`` with the file in ``folder`` where its path is relative."""
    file, colon, name = spec.partition(".py:")
    return f"{folder / file}.py:{name}" if colon and own_path(spec) is not None and ":" not in file else spec


def _tools(path: Path) -> list[dict[str, Any]]:
    """Tools of a JSON list, in OpenAI's form, the function alone, or MCP's. Raises UserError naming file and entry."""
    try:
        listed = json.loads(read_regular(path, "the tools"))
        canonical_json(listed)  # no NaN, and no half of a character
    except (ValueError, RecursionError) as error:
        raise UserError(f"cannot read the tools {path}: {error}") from None
    if isinstance(listed, dict):
        listed = listed.get("tools")
    if not isinstance(listed, list):
        raise UserError(f"{path} holds no list of tools")
    made = []
    for i, one in enumerate(listed, 1):
        function = one.get("function", one) if isinstance(one, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UserError(f"{path}: tool {i} has no name")
        schema = function.get("parameters", function.get("inputSchema", {"type": "object", "properties": {}}))
        if wrong := schema_fault(schema):
            raise UserError(f"{path}: the parameters of tool '{function['name']}' are no JSON schema: {wrong}")
        made.append(
            {
                "type": "function",
                "function": {"name": function["name"], "description": str(function.get("description", "")), "parameters": schema},
            }
        )
    return made


def _state(path: Path) -> tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]]:
    record = read_record(path, "the tables")
    try:
        canonical_json(record)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: {error}") from None
    effects = read_effects(record.pop("effects", []), str(path))
    outputs = record.pop("outputs", {})
    if not isinstance(outputs, dict) or not all(isinstance(one, dict) for one in outputs.values()):
        raise UserError(f"{path}: 'outputs' are JSON schemas by tool")
    for name, one in outputs.items():
        if wrong := schema_fault(one):
            raise UserError(f"{path}: the output of '{name}' is not a JSON schema: {wrong}")
    for name, rows in record.items():
        if not isinstance(rows, dict):
            raise UserError(f"{path}: table '{name}' is not an object of rows by key")
    return record, effects, outputs
