"""What an environment answered, turn by turn, read from any run or log:
only actions and observations, the agent's reasoning left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.base.errors import UserError
from ramify.methods.world_model.algorithm import without_thinking
from ramify.trace.parallel import by_call
from ramify.trace.sources import opened
from ramify.trace.view import View, views

if TYPE_CHECKING:
    from ramify.trace.db import Run

WON, LOST, OVER = "[over: success]", "[over: failure]", "[over]"
"""The last line of an observation with which the environment ends an episode, as a world model writes it."""


@dataclass(frozen=True, slots=True)
class EnvTurn:
    """An action and what the environment answered."""

    action: str
    observation: str
    ended: str = ""
    """"" while the episode continues, else one of :data:`WON`, :data:`LOST`, :data:`OVER`."""
    node: str = ""
    """The node of the observation in its run; "" where there is none."""
    valid: bool = True

    @property
    def whole(self) -> str:
        """The observation with the mark of its end, as a world model is to write it."""
        return self.observation if not self.ended else f"{self.observation}\n{self.ended}" if self.observation else self.ended


@dataclass(frozen=True, slots=True)
class EnvTrajectory:
    """One attempt as its environment saw it."""

    id: str
    """Unique among those read together."""
    task: str
    data: Mapping[str, Any]
    """The task's data: for many environments their whole hidden state at the start."""
    system: str
    """The instructions shown to the agent."""
    opening: str
    """The first observation."""
    turns: tuple[EnvTurn, ...]
    role: str = "user"
    """Role of observations."""
    actions: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", tuple(turn.action for turn in self.turns))


def split_end(text: str) -> tuple[str, str]:
    """An observation as a world model wrote it: its text, and the mark of its end ("" without one)."""
    body, _, last = text.rstrip().rpartition("\n")
    return (body, last) if last in (WON, LOST, OVER) else (text, "")


def read_trajectories(source: Path | str, form: str | None = None) -> list[EnvTrajectory]:
    """The trajectories of a run, or of a log in any format that can be imported.
    Raises UserError where there is none with a turn."""
    with opened(Path(source), form) as run:
        found = list(trajectories_of(run))
    if not found:
        raise UserError(f"{source} holds no turn that an environment answered")
    return found


def trajectories_of(run: Run) -> Iterator[EnvTrajectory]:
    """Those of an open run. An attempt that an infrastructure failure ended keeps the turns before it."""
    for view in views(run, unjudged=True):
        found = _trajectory(view)
        if found.turns:
            yield found


def _trajectory(view: View) -> EnvTrajectory:
    system = "\n\n".join(one.text for one in view.opening)
    opening, role = [], "user"
    turns: list[EnvTurn] = []
    action: str | None = None
    answers: list[Any] = []
    made: Mapping[str, Any] = {}

    def close() -> None:
        if action is not None and answers:
            last = answers[-1].nodes[-1] if answers[-1].nodes else None
            text = "\n".join([one.text for one in by_call(answers, made, lambda one: one.data)])
            valid = bool(last.data.get("valid", True)) if last is not None else True
            turns.append(EnvTurn(action, text, _ended(last), "" if last is None else last.id, valid))

    for message in view.messages[len(view.opening) :]:
        if message.role == "assistant":
            close()
            action, answers, made = without_thinking(message.message.written()).strip(), [], message.data
        elif action is None:
            opening.append(message.text)
        else:
            answers.append(message)
            role = message.role
    close()
    data = {key: value for key, value in view.info.task.items() if key != "id"}
    data = dict(data["data"]) if isinstance(data.get("data"), dict) and len(data) == 1 else data
    return EnvTrajectory(f"{view.info.name}/{view.leaf}", view.task, data, system, "\n".join(opening), tuple(turns), role)


def _ended(node: Any) -> str:
    if node is None or node.stop != "terminated":
        return ""
    outcome = node.data.get("outcome")
    return OVER if outcome is None else WON if outcome else LOST


def first_seen(trajectories: Iterable[EnvTrajectory]) -> list[list[bool]]:
    """Of every turn whether no earlier trajectory holds it: branches of a tree share turns, and each is learnt from once."""
    seen: set[str] = set()
    found = []
    for one in trajectories:
        new = []
        for turn in one.turns:
            new.append(not turn.node or turn.node not in seen)
            seen.add(turn.node)
        found.append(new)
    return found


def tasks_of(trajectories: Sequence[EnvTrajectory]) -> list[dict[str, Any]]:
    """The tasks of trajectories as lines of a task file, each with the observation it began with; of equal ids the first."""
    found: dict[str, dict[str, Any]] = {}
    for one in trajectories:
        found.setdefault(one.task, {"id": one.task, **one.data, "opening": one.opening})
    return [found[name] for name in sorted(found)]
