"""Gymnasium environments as environments: ``gymnasium:ENV_ID`` or ``gymnasium:MODULE:ENV_ID``,
options after ``?``; and the way back.

The agent's reply is read into an action of the environment's action space, and the observation is written as text. The state is
the environment's own (``get_state`` and ``set_state``) where it has one,
else a copy of the whole environment, kept in memory only.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ramify.base.errors import NeedsError, RamifyError, UserError, nearest
from ramify.base.ids import canonical_json, json_hash
from ramify.base.registry import register
from ramify.env.protocol import AnyTasks, Env, Environment, Observation, Snapshot, Task, TaskSet, Volatile, close, task_set_of
from ramify.env.tools import cut
from ramify.integrations.environments.spec import import_module, import_package, options, seeded

MAX_TURNS = 200
"""Where the environment itself has no limit."""
MOST = 4000
"""Characters of an observation."""
_OWN = ("actions", "max_turns", "success")


class GymnasiumEpisode:
    """One episode of a Gymnasium environment."""

    system = ""

    def __init__(self, environment: GymnasiumEnvironment) -> None:
        self._environment, self._env = environment, environment.build()
        spec = getattr(self._env, "spec", None)
        self.max_turns = environment.max_turns or getattr(spec, "max_episode_steps", None) or MAX_TURNS
        threshold = getattr(spec, "reward_threshold", None)
        self._success = threshold if environment.success is None else environment.success
        self._names = list(environment.action_names) or _action_names(self._env)
        self._total, self._over = 0.0, False
        space = self._env.action_space
        kind = type(space).__name__
        if kind not in ("Discrete", "Text", "Box", "MultiDiscrete", "MultiBinary"):
            raise NeedsError(
                f"{environment.name} has actions of the kind {kind}, which no reply spells; wrap it so that they are texts"
            )
        if kind == "Discrete":
            names = [f"{i + int(space.start)} ({name})" for i, name in enumerate(self._names)]
            low = int(space.start)
            shown = ", ".join(names) if names else f"a number from {low} to {low + int(space.n) - 1}"
            self.system = f"Reply with one action: {shown}."
        elif kind != "Text":
            self.system = f"Reply with one action, a JSON list of shape {list(space.shape)}."

    def reset(self, task: Task, seed: int) -> Observation:
        """Start with the task's seed, or with ``seed`` where it names none."""
        number = task.data.get("seed", seed % 2**32)
        if type(number) is not int or number < 0:
            raise UserError(f"task '{task.id}': 'seed' must be a whole number from 0, not {number!r}")
        extra = task.data.get("options")
        seen, _ = self._env.reset(seed=number, options=dict(extra) if isinstance(extra, Mapping) else None)
        self._total, self._over = 0.0, False
        return Observation(self._text(seen))

    def step(self, action: str) -> Observation:
        """Act. A reply that is not an action is answered with a description of actions and takes no step."""
        if self._over:
            return Observation("The episode is over.", truncated=True, valid=False)
        chosen = self._read(action)
        if chosen is None:
            return Observation(f"That is not an action. {self.system}".strip(), valid=False)
        seen, reward, terminated, truncated, info = self._env.step(chosen)
        self._total += float(reward)
        self._over = bool(terminated or truncated)
        outcome = None
        if self._over:
            success = next((info[name] for name in ("is_success", "success") if name in info), None)
            outcome = bool(success) if success is not None else None if self._success is None else self._total >= self._success
        return Observation(self._text(seen), float(reward), bool(terminated), bool(truncated and not terminated), outcome)

    def snapshot(self) -> Snapshot | None:
        """The environment's own state where it is JSON, else a copy in memory; None where neither is possible."""
        inner = self._env.unwrapped
        try:
            if hasattr(inner, "get_state") and hasattr(inner, "set_state"):
                body = {"state": inner.get_state(), "steps": self._steps(), "total": self._total, "over": self._over}
                text = canonical_json(body)
                return json.loads(text) if json.loads(text) == body else None
        except (TypeError, ValueError):
            pass
        try:
            return Volatile((copy.deepcopy(self._env), self._total, self._over))
        except Exception:  # an environment that holds a window, a process or a lock cannot be copied
            return None

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to ``snapshot``."""
        if isinstance(snapshot, Volatile):
            env, self._total, self._over = snapshot.state
            self._env = copy.deepcopy(env)
            return
        self._env.unwrapped.set_state(copy.deepcopy(snapshot["state"]))
        self._steps(snapshot["steps"])
        self._total, self._over = snapshot["total"], snapshot["over"]

    def key(self) -> str | None:
        """The environment's own state and time, where it has one."""
        snapshot = self.snapshot() if hasattr(self._env.unwrapped, "get_state") else None
        return None if snapshot is None or isinstance(snapshot, Volatile) else json_hash(snapshot)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def examples(self) -> list[str]:
        """Replies that are actions: all of a few, or some of many."""
        space = self._env.action_space
        if type(space).__name__ == "Discrete":
            return [str(space.start + i) for i in range(min(8, int(space.n)))]
        space.seed(0)
        return [written(space.sample()) for _ in range(4)]

    def _steps(self, now: int | None = None) -> int | None:
        """Steps that the time limit around the environment has counted; sets them when given."""
        env = self._env
        while env is not env.unwrapped:
            if "_elapsed_steps" in vars(env):
                if now is not None:
                    env._elapsed_steps = now
                return env._elapsed_steps  # type: ignore[no-any-return]
            env = env.env
        return None

    def _read(self, reply: str) -> Any:
        """The action a reply spells, or None."""
        space = self._env.action_space
        kind = type(space).__name__
        if kind == "Text":
            return reply if space.contains(reply) else None
        if kind == "Discrete":
            return self._discrete(reply, int(space.start), int(space.n))
        try:
            value = np.asarray(json.loads(reply), dtype=space.dtype)
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None
        return value if value.shape == space.shape and space.contains(value) else None

    def _discrete(self, reply: str, start: int, count: int) -> int | None:
        """The action named last in the reply, by name or by number."""
        known = {name.casefold(): start + i for i, name in enumerate(self._names)}
        known |= {str(start + i): start + i for i in range(count)}
        text = " ".join(reply[-2000:].casefold().split())
        if text in known:
            return known[text]
        longest = sorted(known, key=len, reverse=True)
        found = re.findall(r"(?<![\w.-])(" + "|".join(map(re.escape, longest)) + r")(?![\w-]|\.\d)", text)
        return known[found[-1]] if found else None

    def _text(self, seen: Any) -> str:
        sampled = self._env.render() if self._env.render_mode == "ansi" else None
        text = written(seen)
        return cut(f"{_marked(sampled)}\n{text}" if isinstance(sampled, str) else text, MOST)


@register("env", "gymnasium")
class GymnasiumEnvironment:
    """A registered Gymnasium environment. Options after ``?`` go to the environment, but for ramify's own: ``actions`` (names of
    the discrete actions, comma between them), ``max_turns``,
    ``success`` (an episode that collects at least this reward succeeded).

    Raises UserError where there is no such environment, NeedsError where gymnasium is not installed or no reply can spell its
    actions.
    """

    def __init__(self, argument: str = "") -> None:
        spec, found = options(argument)
        module, _, env_id = spec.rpartition(":")
        if not env_id:
            raise UserError("the environment 'gymnasium' needs an environment: gymnasium:ENV_ID or gymnasium:MODULE:ENV_ID")
        self.name = f"gymnasium:{argument}"
        self._id, self._settings = env_id, {key: value for key, value in found.items() if key not in _OWN}
        self.action_names: Sequence[str] = [name.strip() for name in str(found.get("actions", "")).split(",") if name.strip()]
        self.max_turns: int | None = found.get("max_turns")
        self.success: float | None = found.get("success")
        if self.max_turns is not None and (type(self.max_turns) is not int or self.max_turns < 1):
            raise UserError(f"max_turns must be a whole number from 1, not {self.max_turns!r}")
        if self.success is not None and type(self.success) not in (int, float):
            raise UserError(f"success must be a number, not {self.success!r}")
        self._gymnasium = import_package("gymnasium", "environments", "the environment 'gymnasium'")
        if module:
            import_module(module)
        episode = GymnasiumEpisode(self)
        self._examples = episode.examples()
        episode.close()

    def build(self) -> Any:
        """The environment itself. Raises UserError."""
        try:
            return self._gymnasium.make(self._id, **self._settings, disable_env_checker=True)
        except RamifyError:
            raise
        except Exception as error:  # whatever a third-party constructor raises, the environment does not exist
            raise UserError(f"no environment {self.name}: {str(error).partition(chr(10))[0]}") from error

    def make(self) -> Env:
        """A fresh episode."""
        return GymnasiumEpisode(self)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` seeds of a split."""
        return seeded(self._id.replace("/", "-"), split, n, seed)

    def actions(self, task: Task, snapshot: Snapshot) -> Sequence[str]:
        """Replies worth trying, for the conformance battery."""
        return self._examples


def written(value: Any) -> str:
    """An observation as text: text as it is, a mapping line by line,
    numbers and arrays as compact JSON with 4 significant digits."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {written(part)}" for key, part in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(written, value))
    if isinstance(value, np.ndarray | np.generic):
        return json.dumps(_rounded(value.tolist()), separators=(",", ":"))
    return str(_rounded(value))


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _marked(sampled: str) -> str:
    """A picture for the terminal as plain text; coloured cells (the agent's position) are in brackets."""
    return re.sub(r"\x1b\[[0-9;]*m", "", re.sub(r"\x1b\[[0-9;]*m([^\x1b]*)\x1b\[0m", r"[\1]", sampled)).strip()


def _action_names(env: Any) -> list[str]:
    """Names of discrete actions where the environment knows them: an enumeration ``actions``, or ``get_action_meanings()``."""
    inner, count = env.unwrapped, int(getattr(env.action_space, "n", 0))
    meanings = getattr(inner, "get_action_meanings", None)
    named = list(meanings()) if callable(meanings) else list(getattr(getattr(inner, "actions", None), "__members__", ()))
    return [str(name) for name in named] if len(named) == count else []


def as_gymnasium(environment: Environment | str, tasks: AnyTasks | None = None) -> Any:
    """Any environment (or its name) as a ``gymnasium.Env`` whose actions and observations are texts.

    ``reset(seed=, options={"task": ID})`` begins the named task, else one of ``tasks`` (by default 100 of the split train) that
    the seed chooses; ``info`` holds the task, and after each step the verifier's ``outcome`` (``is_success`` once it is decided),
    ``valid``, ``role`` and ``data``. Raises NeedsError where gymnasium is not installed, UserError on an unknown task.
    """
    gymnasium = import_package("gymnasium", "environments", "as_gymnasium")
    from ramify.rollout.components import find_environment

    chosen = find_environment(environment) if isinstance(environment, str) else environment
    own = {task.id: task for task in (chosen.task_set("train", 100) if tasks is None else task_set_of(tasks))}

    class AnyText(gymnasium.spaces.Text):  # type: ignore[misc, name-defined]
        def contains(self, x: Any) -> bool:
            return isinstance(x, str)

    class TextEnv(gymnasium.Env):  # type: ignore[misc, name-defined]
        metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

        def __init__(self) -> None:
            self.action_space, self.observation_space = AnyText(1000), AnyText(100_000)
            self.env, self.turns = chosen.make(), 0

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
            super().reset(seed=seed)
            name = (options or {}).get("task") or list(own)[int(self.np_random.integers(len(own)))]
            if name not in own:
                raise UserError(f"there is no task '{name}' ({nearest(str(name), own)})")
            close(self.env)
            self.env, self.turns = chosen.make(), 0
            seen = self.env.reset(own[name], 0 if seed is None else seed)
            return seen.text, {"task": name, "system": self.env.system, "role": seen.role, "data": dict(seen.data)}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            seen = self.env.step(action)
            self.turns += 1
            cut = not seen.terminated and (seen.truncated or self.turns >= self.env.max_turns)
            info = {"outcome": seen.outcome, "valid": seen.valid, "role": seen.role, "data": dict(seen.data)}
            info |= {} if seen.outcome is None else {"is_success": seen.outcome}
            return seen.text, seen.reward, seen.terminated, cut, info

        def close(self) -> None:
            close(self.env)

    return TextEnv()
