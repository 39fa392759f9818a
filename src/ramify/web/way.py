"""The way of a run on the pages: record, why, cause, fix, test. What each verb stored in the run, and the command where it has
stored nothing yet."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from ramify.base.errors import UserError
from ramify.jobs.context.ask import MAKER as CAUSE
from ramify.jobs.context.ask import found_contexts
from ramify.jobs.why.findings import MAKER as WHY
from ramify.jobs.why.findings import found
from ramify.render.result import Result, Section
from ramify.render.sections import sections_of
from ramify.rollout.stored import named_components
from ramify.trace.db import Run

QUESTIONS = {
    "record": "What happened: attempts, their steps, and how they ended.",
    "why": "Which step lost it, and what else was possible there.",
    "cause": "Which part of what the agent was shown caused that step.",
    "fix": "Which edit of what the agent is shown helps, also at other tasks.",
    "test": "How reliable the agent is, and whether another version differs.",
}
"""The stations, in order, each with what it answers."""
STATIONS = ("why", "cause", "fix", "test", "more")
"""Pages of what verbs stored, the last of all other verbs."""
_MAKERS = {"fix": ("fix",), "test": ("test", "test against")}
_OF_ATTEMPTS = (WHY, CAUSE)
"""Verbs whose answers are findings, one of each attempt or step."""


@dataclass(frozen=True, slots=True)
class Nav:
    """Where a served page stands among the others."""

    here: str
    """The link that is current: ``home``, ``runs``, ``words``, or a station of the run."""
    run: str = ""
    """The run as people read it; empty on a page of no run."""
    base: str = ""
    """Address that the run's pages begin with."""
    way: tuple[tuple[str, str, str], ...] = ()
    """Stations of the run: name, address, how many answers are stored ("" where none is)."""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What one call of a verb stored: a page of its own."""

    key: str
    """Its name in the address."""
    headline: str
    about: str
    """What it is about: an attempt, a step, the run."""
    sections: tuple[Section, ...]


def key_of(name: str) -> str:
    """A run's name (its folder below that of all runs) as one part of an address."""
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="")


def name_of(key: str) -> str:
    """Inverse of :func:`key_of`, of a part that is decoded."""
    return key.replace("~1", "/").replace("~0", "~")


def nav_of(run: Run, name: str, here: str) -> Nav:
    """The navigation of a page of ``run``, which is called ``name`` below the folder of all runs."""
    base = f"/run/{key_of(name)}"
    counts = {station: len(answers(run, station)) for station in QUESTIONS if station != "record"}
    way = [("record", f"{base}/", f"{len(run.trees())}")]
    way += [(station, f"{base}/{station}", str(count or "")) for station, count in counts.items()]
    return Nav(here, name, base, tuple(way))


def answers(run: Run, station: str) -> list[StoredAnswer]:
    """What the verb of a station stored in the run, in order of writing."""
    if station == "why":
        return [_answer(why.attempt, why.headline, f"attempt {why.attempt[:12]} of {why.tree}", why) for why in found(run)]
    if station == "cause":
        return [_answer(one.node, one.headline, f"step {one.node[:12]} of {one.tree}", one) for one in found_contexts(run)]
    return [one for one in others(run, ()) if one.key in _MAKERS[station]]


def others(run: Run, without: Iterable[str] = (*_OF_ATTEMPTS, *sum(_MAKERS.values(), ()))) -> list[StoredAnswer]:
    """What other verbs stored in the run."""
    skipped = set(without)
    return [
        StoredAnswer(maker, _first_line(sections), "the run", sections)
        for maker, sections in sections_of(run).items()
        if maker not in skipped
    ]


def _answer(key: str, headline: str, about: str, result: Result) -> StoredAnswer:
    caveats = [Section.of("Before you trust it", "\n".join(result.caveats))] if result.caveats else []
    return StoredAnswer(key, headline, about, (*result.sections(), *caveats))


def _first_line(sections: Sequence[Section]) -> str:
    texts = (part for section in sections for part in section.parts if isinstance(part, str))
    return next(texts, "").partition("\n")[0]


def who_plays(run: Run) -> str:
    """The options that say who continues the run's attempts: empty where the run names both."""
    try:
        named_components(run)
    except UserError:
        model, env = run.config.get("model"), run.config.get("env")
        return ("" if isinstance(model, str) else " --model MODEL") + ("" if isinstance(env, str) else " --env ENV")
    return ""


def command(run: Run, name: str, station: str) -> str:
    """The command that answers a station's question. ``name`` is the run as commands name it."""
    words = shlex.quote(name)
    return {
        "record": f"ramify show {words}",
        "why": f"ramify why {words}",
        "cause": f"ramify why {words} --context{who_plays(run)}",
        "fix": f"ramify fix {words} --rule 'TEXT'{who_plays(run)}",
        "test": f"ramify test {words}",
    }[station]
