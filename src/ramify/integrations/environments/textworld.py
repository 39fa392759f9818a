"""TextWorld games as environments: ``textworld:GAME.z8`` (or a folder of them), ``textworld:make?rooms=3&objects=4&length=4``,
or ``textworld:treasure?level=8``.

Generated games are compiled on first use and kept in a cache by the hash of their settings. There are no snapshots: copying a
running game loads a whole interpreter (0.1 s), replaying a step takes 2 ms, so a fork replays and checks.
"""

from __future__ import annotations

import importlib
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.base.errors import InfrastructureError, NeedsError, UserError, nearest
from ramify.base.files import reason
from ramify.base.ids import json_hash, stable_hash
from ramify.base.registry import register
from ramify.base.seeds import derive_key
from ramify.env.protocol import Env, Observation, Snapshot, Task, TaskSet
from ramify.env.task_sets import known_split
from ramify.integrations.environments.spec import TaskList, import_package, options, seeded

MAX_TURNS = 100
MAPS = 20
"""Maps that are drawn for a generated game before it is given up."""
SIZES = {"make": {"rooms": 3, "objects": 5, "length": 4}, "treasure": {"level": 8}}
"""Kinds of generated games, and their settings with defaults. make: rooms, objects in them, and the fewest actions that win.
treasure: TextWorld's Treasure Hunter (one thing to find, another that loses the game), from level 1 to 30."""
_OWN = ("admissible", "max_turns")
#: Commands to the interpreter, not to the game: they write files, read those of another episode, or ask for confirmation.
_META = frozenset(
    """save restore restart quit q script transcript unscript noscript notranscript undo again g oops o version verify record
    unrecord replay recording superbrief brief verbose notify""".split()
)
_STATUS = re.compile(r"\s*>?[ \t]*-= .{1,200} =-\s*-?\d+/-?\d+\s*$")


class TextWorldEpisode:
    """One game. ``admissible`` lists the commands that make sense after every observation."""

    system = "You play a text adventure. Reply with one command."

    def __init__(self, environment: TextWorldEnvironment) -> None:
        self._environment, self.max_turns = environment, environment.max_turns
        self._file = ""
        self._game: Any = None
        self._score, self._over = 0, True

    def reset(self, task: Task, seed: int) -> Observation:
        """Start the task's game from its beginning. Raises UserError where there is no such game."""
        self.close()
        self._file = str(self._environment.file(task))
        self._game = self._environment.open(self._file)
        self._game.seed(derive_key(seed, "textworld", task.id) % 2**31)
        try:
            state = self._game.reset()
        except Exception as error:  # an interpreter written in C: a file that is not a game shows here
            raise InfrastructureError("env", f"the game {self._file} does not start: {error}") from error
        self._score, self._over = 0, False
        return Observation(self._text(state))

    def step(self, action: str) -> Observation:
        """Give one command. A reply that is not a command, or one for the interpreter,
        is refused and the game does not advance."""
        if self._over:
            raise InfrastructureError("env", "step without a running episode")
        command = " ".join(action.split())
        if not re.fullmatch(r"[A-Za-z0-9' -]{1,120}", command) or _is_meta(command):
            return Observation("That is not a command of the game.", valid=False)
        state, score, done = self._game.step(command)
        reward = float((score or 0) - self._score)
        self._score, self._over = score or 0, bool(done)
        won, lost = bool(state.get("won")), bool(state.get("lost"))
        outcome = True if won else False if lost or done else None
        return Observation(self._text(state), reward, terminated=bool(done), outcome=outcome)

    def snapshot(self) -> None:
        """None: see the module."""

    def restore(self, snapshot: Snapshot) -> None:
        """Never called: there are no snapshots."""
        raise InfrastructureError("env", "a TextWorld game has no snapshot")

    def key(self) -> None:
        """None: the game does not expose its whole state."""

    def close(self) -> None:
        """Give the interpreter back for the next episode of the same game."""
        if self._game is not None:
            self._environment.give_back(self._file, self._game)
            self._game, self._over = None, True

    def _text(self, state: Mapping[str, Any]) -> str:
        lines = _STATUS.sub("", state["feedback"]).splitlines()
        while lines and not re.search(r"[A-Za-z]", lines[0]):  # the banner, and empty lines
            lines.pop(0)
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in lines)).strip()
        commands = state.get("admissible_commands") if self._environment.admissible and not self._over else None
        return f"{text}\n\nCommands: {'; '.join(commands)}" if commands else text


@register("env", "textworld")
class TextWorldEnvironment:
    """TextWorld games. Options after ``?``: ``admissible=true``, ``max_turns``,
    and those of :data:`SIZES` after the kind of a generated game.

    Raises UserError on a file or option that does not exist, NeedsError where textworld is not installed.
    """

    def __init__(self, argument: str = "") -> None:
        source, found = options(argument)
        self.name = f"textworld:{argument}"
        self.admissible = bool(found.pop("admissible", False))
        self.max_turns = found.pop("max_turns", MAX_TURNS)
        if type(self.max_turns) is not int or self.max_turns < 1:
            raise UserError(f"max_turns must be a whole number from 1, not {self.max_turns!r}")
        known = SIZES.get(source, {})
        for name, value in found.items():
            if name not in known:
                raise UserError(f"{self.name} has no option '{name}' ({nearest(name, [*known, *_OWN])})")
            if type(value) is not int or value < 1:
                raise UserError(f"{name} must be a whole number from 1, not {value!r}")
        self._kind, self._sizes = source, known | found
        self._folder = Path(source) if Path(source).is_dir() else Path(source).parent
        self._tasks = None if source in SIZES else TaskList(_games(source), self.name)
        self._textworld = import_package("textworld", "environments", "the environment 'textworld'")
        self._idle: dict[str, list[Any]] = {}

    def make(self) -> Env:
        """A fresh episode."""
        return TextWorldEpisode(self)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` games to be generated, or at most ``n`` of those in a folder."""
        if self._tasks is not None:
            return self._tasks.task_set(split, n, seed)
        known_split(split)
        return seeded("textworld", split, n, seed)

    def file(self, task: Task) -> Path:
        """The compiled game of a task. Raises UserError where it has none."""
        if "game" in task.data:
            file = self._folder / str(task.data["game"])
            if not file.is_file():
                raise UserError(f"task '{task.id}': there is no game {file}")
            return file
        number = task.data.get("seed")
        if self._tasks is not None or type(number) is not int or number < 0:
            raise UserError(f"task '{task.id}' names neither a 'game' nor a 'seed' to make one of")
        return self._made(number)

    def walkthrough(self, task: Task) -> list[str]:
        """Commands that win the task's game. Raises NeedsError where the game does not list them."""
        file = str(self.file(task))
        game = self.open(file)
        found = game.reset().get("extra.walkthrough")
        self.give_back(file, game)
        if not found:
            raise NeedsError(f"the game of task '{task.id}' has no walkthrough")
        return list(found)

    def open(self, file: str, *asked: str) -> Any:
        """A game ready for ``reset``; ``asked``: what its states tell besides, fields of ``textworld.EnvInfos``. Raises UserError
        where the file is not a game."""
        if not asked and self._idle.get(file):
            return self._idle[file].pop()
        _check_story(Path(file))
        wanted = self._textworld.EnvInfos(won=True, lost=True, score=True, extras=["walkthrough"])
        wanted.admissible_commands = self.admissible
        for name in asked:
            setattr(wanted, name, True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # jericho knows classics only; TextWorld's own games it calls unsupported
                return self._textworld.start(file, wanted)
        except Exception as error:  # the interpreter's loader raises whatever it finds
            raise UserError(f"{file} is not a game that TextWorld can play: {type(error).__name__}: {error}") from error

    def give_back(self, file: str, game: Any) -> None:
        """Keep a game for the next episode."""
        self._idle.setdefault(file, []).append(game)

    def _made(self, seed: int) -> Path:
        """Generate and compile a game, or find it in the cache. Written whole or not at all."""
        settings = {**self._sizes, "seed": seed, "textworld": self._textworld.__version__}
        target = _cache() / f"{json_hash(settings)}.z8"
        if target.is_file():
            return target
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                self._compile(str(Path(folder) / "game.z8"), seed)
                for suffix in (".json", ".z8"):  # the game last: where it is, the rest is
                    os.replace(Path(folder) / f"game{suffix}", target.with_suffix(suffix))
        except OSError as error:
            raise UserError(f"cannot write the game to {target.parent}: {error}") from error
        except Exception as error:  # settings no game can have are found out while it is made
            raise UserError(f"TextWorld makes no game of {self.name}: {type(error).__name__}: {error}") from error
        return target

    def _compile(self, path: str, seed: int) -> None:
        """Write the game of ``seed``. Some seeds draw a map without room for the quest: then that of a seed derived from it."""
        no_quest = self._textworld.generator.QuestGenerationError
        for attempt in range(MAPS):
            made = self._textworld.GameOptions()
            made.seeds, made.path = (derive_key(seed, "textworld map", attempt) if attempt else seed) % 2**32, path
            try:
                if self._kind == "make":
                    made.nb_rooms, made.nb_objects, made.quest_length = (self._sizes[n] for n in ("rooms", "objects", "length"))
                    self._textworld.make(made)
                else:
                    _, make, _ = importlib.import_module("textworld.challenges").CHALLENGES["tw-treasure_hunter"]
                    self._textworld.generator.compile_game(make(self._sizes, made), made)
                return
            except no_quest:
                if attempt == MAPS - 1:
                    raise


def _check_story(path: Path) -> None:
    """Raises UserError where a file's header, length or checksum is not a Z-machine story's:
    the interpreter would end the process."""
    try:
        story = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the game {path}: {reason(error)}") from error
    factor = {3: 2, 4: 4, 5: 4, 6: 8, 7: 8, 8: 8}.get(story[0] if len(story) >= 64 else 0)
    length = int.from_bytes(story[26:28], "big") * (factor or 0)
    whole = factor is not None and 64 < length <= len(story)
    if not whole or sum(story[64:length]) % 2**16 != int.from_bytes(story[28:30], "big"):
        raise UserError(f"{path} is not a game that TextWorld can play: it is not a whole Z-machine story file")


def _is_meta(command: str) -> bool:
    """Whether some command in the line (``then`` joins several) is for the interpreter."""
    for part in re.split(r"\bthen\b", command.lower()):
        first = part.split()[:1]
        if first and (first[0] in _META or first[0].startswith("tw-")):
            return True
    return False


def _games(source: str) -> list[Task]:
    path = Path(source)
    files = sorted(path.glob("*.z[1-8]")) if path.is_dir() else [path]
    if not source or not files or not all(file.is_file() for file in files):
        raise UserError(
            f"there is no game '{source}': give a .z8 file, a folder of them, make?rooms=3&objects=5&length=4, or "
            "treasure?level=8"
        )
    if path.is_dir():
        return [Task(file.stem, _content(file)) for file in files]
    return [Task(path.stem, _content(path) | {"split": "train"})]


def _content(file: Path) -> dict[str, str]:
    return {"game": file.name, "content": stable_hash(file.read_bytes())}


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "ramify" / "textworld"
