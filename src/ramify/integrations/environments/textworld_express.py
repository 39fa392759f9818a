"""TextWorldExpress's games as environments: ``textworld-express:GAME``, with the game's own settings after ``?``
(Jansen and Côté 2022). They run in a Java program, one for each episode that is open.

There are no snapshots: a game is a seed and the commands given, a step takes a millisecond, so a fork replays and checks.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from typing import Any

from ramify.base.errors import InfrastructureError, NeedsError, UserError, nearest
from ramify.base.ids import stable_hash
from ramify.base.registry import register
from ramify.env.protocol import Env, Observation, Snapshot, Task, TaskSet
from ramify.env.task_sets import known_split
from ramify.integrations.environments.spec import import_package, options

GAMES = ("cookingworld", "twc", "coin", "mapreader", "arithmetic", "sorting", "simonsays", "peckingorder")
MAX_TURNS = 50
AT_ONCE = 4
FOLDS = {
    "train": ("train", 0, 900),
    "demo": ("train", 900, 1000),
    "tune": ("dev", 10_000, 11_000),
    "eval": ("test", 20_000, 21_000),
}
"""A split's fold of the package, and its seeds: those of its train, dev and test folds."""
_NO_LIMIT = 10**9


class TextWorldExpressEpisode:
    """One game. With ``admissible`` each observation ends with the commands that make sense."""

    def __init__(self, environment: TextWorldExpressEnvironment) -> None:
        self._environment, self.max_turns = environment, environment.max_turns
        self.system = "You play a text adventure. Reply with one command."
        self._game: Any = None
        self._score, self._over = 0.0, True
        self._commands: tuple[str, ...] = ()

    def reset(self, task: Task, seed: int) -> Observation:
        """Start the task's game. Raises UserError where the game cannot be made so."""
        self.close()
        self._game = self._environment.open()
        shown = self._environment.begin(self._game, task)
        self._score, self._over = float(shown["score"]), False
        self._commands = tuple(sorted(shown["validActions"]))
        return Observation(f"{shown['taskDescription']}\n\n{self._text(shown)}")

    def step(self, action: str) -> Observation:
        """Give one command."""
        if self._over:
            raise InfrastructureError("env", "step without a running episode")
        command = " ".join(action.split())
        if not command or len(command) > 120 or not command.isascii() or not command.isprintable():
            return Observation("That is not a command of the game.", valid=False)
        try:
            _, _, _, shown = self._game.step(command)
        except Exception as error:  # whatever the bridge to Java raises
            raise InfrastructureError("env", f"the game broke off: {type(error).__name__}: {error}") from error
        self._commands, score = tuple(sorted(shown["validActions"])), float(shown["score"])
        won, lost = bool(shown["tasksuccess"]) or score >= 1, bool(shown["taskfailure"])
        reward, self._score, self._over = score - self._score, score, won or lost
        outcome = True if won else False if lost else None
        valid = not str(shown["observation"]).startswith("Unknown action")
        return Observation(self._text(shown), reward, terminated=won or lost, outcome=outcome, valid=valid)

    def actions(self) -> tuple[str, ...]:
        """Commands that make sense now."""
        return self._commands

    def snapshot(self) -> None:
        """None: see the module."""

    def restore(self, snapshot: Snapshot) -> None:
        """Never called: there are no snapshots."""
        raise InfrastructureError("env", "a game of TextWorldExpress has no snapshot")

    def key(self) -> None:
        """None: the game does not show its whole state."""

    def close(self) -> None:
        """Give the Java program back for the next episode."""
        if self._game is not None:
            self._environment.give_back(self._game)
            self._game, self._over = None, True

    def _text(self, shown: Mapping[str, Any]) -> str:
        text = str(shown["observation"]).strip()
        commands = "; ".join(sorted(shown["validActions"])) if self._environment.admissible else ""
        return f"{text}\n\nCommands: {commands}" if commands else text


@register("env", "textworld-express")
class TextWorldExpressEnvironment:
    """A game of TextWorldExpress. Options after ``?``: ``admissible=true``, ``max_turns``, and the game's own settings, such as
    ``numLocations=5`` of ``coin``.

    Raises UserError on a game that does not exist, NeedsError where textworld-express or Java is missing.
    """

    at_once = AT_ONCE
    blocking = True

    def __init__(self, argument: str = "") -> None:
        self._game_name, given = options(argument)
        self.name = f"textworld-express:{argument}"
        if self._game_name not in GAMES:
            raise UserError(f"there is no game '{self._game_name}': {', '.join(GAMES)} ({nearest(self._game_name, GAMES)})")
        self.admissible = bool(given.pop("admissible", False))
        self.max_turns = given.pop("max_turns", MAX_TURNS)
        if type(self.max_turns) is not int or self.max_turns < 1:
            raise UserError(f"max_turns must be a whole number from 1, not {self.max_turns!r}")
        self._settings = ",".join(f"{name}={int(value) if isinstance(value, bool) else value}" for name, value in given.items())
        self._package = import_package("textworld_express", "worlds", "the environment 'textworld-express'")
        self._idle: list[Any] = []
        self._paths: dict[str, list[str]] = {}

    def make(self) -> Env:
        """A fresh episode."""
        return TextWorldExpressEpisode(self)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` games of a split, chosen by ``seed``. Raises UserError where it has fewer."""
        known_split(split)
        _, first, end = FOLDS[split]
        if n > end - first:
            raise UserError(f"{self.name} has {end - first} {split} games, not {n}")
        ranked = sorted(range(first, end), key=lambda number: stable_hash("panel", seed, number))
        return TaskSet.of(Task(f"{self._game_name}-{number}", {"seed": number, "split": split}) for number in ranked[:n])

    def begin(self, game: Any, task: Task, gold: bool = False) -> Mapping[str, Any]:
        """Start a task's game, and what it shows. Raises UserError where it cannot be made."""
        number = task.data.get("seed")
        fold = next((fold for fold, first, end in FOLDS.values() if type(number) is int and first <= number < end), None)
        if fold is None:
            raise UserError(f"task '{task.id}' names no 'seed' of a game, which is 0 to 999, or of 10000 or 20000")
        try:
            _, shown = game.reset(number, fold, self._game_name, self._settings, gold)
        except ValueError as error:
            raise UserError(f"TextWorldExpress makes no game of {self.name}: {error}") from error
        except Exception as error:  # whatever the bridge to Java raises
            raise InfrastructureError("env", f"the game does not start: {type(error).__name__}: {error}") from error
        said: Mapping[str, Any] = shown
        return said

    def walkthrough(self, task: Task) -> list[str]:
        """Commands that win the task's game. The package draws another such path in each process; here it is drawn once."""
        if task.id not in self._paths:
            game = self.open()
            try:
                self.begin(game, task, gold=True)
                self._paths[task.id] = [str(command) for command in game.getGoldActionSequence()]
            finally:
                self.give_back(game)
        return list(self._paths[task.id])

    def open(self) -> Any:
        """A game program. Raises NeedsError where Java is missing."""
        if self._idle:
            return self._idle.pop()
        try:
            game = self._package.TextWorldExpressEnv(envStepLimit=_NO_LIMIT)
        except FileNotFoundError as error:
            raise NeedsError("the environment 'textworld-express' needs Java: install a Java runtime (17 or newer)") from error
        atexit.register(_end, game)
        return game

    def give_back(self, game: Any) -> None:
        """Keep a game program for the next episode."""
        self._idle.append(game)


def _end(game: Any) -> None:
    program = game._gateway.java_process
    game.close()
    program.stdin.close()
    program.wait()
