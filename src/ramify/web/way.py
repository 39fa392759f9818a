"""The way of a run on the pages: record, why, cause, fix, test. What each verb stored in the run, and the command where it has
stored nothing yet."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.jobs.context.answer import WhyContext
from ramify.jobs.context.ask import MAKER as CAUSE
from ramify.jobs.why.answer import Why
from ramify.jobs.why.findings import MAKER as WHY
from ramify.render.escape import visible
from ramify.render.result import Section
from ramify.render.sections import sections_of_kept
from ramify.rollout.stored import named_components
from ramify.trace.db import Run
from ramify.trace.node import Finding, KeptResult

QUESTIONS = {
    "record": "What happened: attempts, their steps, and how they ended.",
    "why": "Which step lost it, and what else was possible there.",
    "cause": "Which part of what the agent was shown caused that step.",
    "fix": "Which edit of what the agent is shown helps, also at other tasks.",
    "test": "How reliable the agent is, and whether another version differs.",
    "more": "What other commands found in this run.",
}
"""The stations, in order, each with what it answers."""
STATIONS = tuple(name for name in QUESTIONS if name != "record")
"""Those with what verbs stored, the last of all other verbs."""
_MAKERS = {"fix": ("fix",), "test": ("test", "test against")}


@dataclass(frozen=True, slots=True)
class Nav:
    """Where a served page stands among the others."""

    here: str
    """The link that is current: ``home``, ``runs``, ``jobs``, ``words``, or a station of the run."""
    run: str = ""
    """The run as people read it; empty on a page of no run."""
    base: str = ""
    """Address that the run's pages begin with."""
    way: tuple[tuple[str, str, str], ...] = ()
    """Stations of the run: name, address, how many answers are stored ("" where none is)."""
    acts: tuple[tuple[str, str], ...] = ()
    """What can be done on a page of the run: address, text."""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What one call of a verb stored: a page of its own."""

    key: str
    """Its name in the address."""
    headline: str
    about: str
    """What it is about: an attempt, a step, the run."""
    sections: tuple[Section, ...]

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """The headline in pieces, each with whether it stood between backticks."""
        return in_code(self.headline)


def key_of(name: str) -> str:
    """A run's name (its folder below that of all runs) as one part of an address."""
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="")


def name_of(key: str) -> str:
    """Inverse of :func:`key_of`, of a part that is decoded."""
    return key.replace("~1", "/").replace("~0", "~")


def nav_of(run: Run, name: str, here: str) -> Nav:
    """The navigation of a page of ``run``, which is called ``name`` below the folder of all runs."""
    base = f"/run/{key_of(name)}"
    counts = {station: len(answers(run, station)) for station in STATIONS}
    way = [(station, f"{base}/{station}", str(n or "")) for station, n in counts.items() if n or station != "more"]
    return Nav(here, name, base, (("record", f"{base}/", ""), *way))


def answers(run: Run, station: str) -> list[StoredAnswer]:
    """What the verb of a station stored in the run, in order of writing."""
    kept = run.results()
    if station == "why":
        whole = [_kept(run, one, "one attempt of every task") for one in kept if one.maker == WHY and "all" in one.result]
        return whole + [_found(one, Why, run) for one in run.findings(maker=WHY)]
    if station == "cause":
        return [_found(one, WhyContext, run) for one in run.findings(maker=CAUSE)]
    if station in _MAKERS:
        return [_kept(run, one, "the run") for one in kept if one.maker in _MAKERS[station]]
    elsewhere = (WHY, run.kind, *sum(_MAKERS.values(), ()))
    return [_kept(run, one, one.maker) for one in kept if one.maker not in elsewhere]


def _kept(run: Run, kept: KeptResult, about: str) -> StoredAnswer:
    sections = sections_of_kept(run, kept)
    texts = (part for section in sections for part in section.parts if isinstance(part, str))
    return StoredAnswer(kept.maker, next(texts, "").partition("\n")[0], about, sections)


def _found(finding: Finding, kind: type[Why] | type[WhyContext], run: Run) -> StoredAnswer:
    """An answer that is a finding. Of one that cannot be read, as a foreign run may hold, what it says in words."""
    node = finding.node or ""
    about = f"{'attempt' if kind is Why else 'step'} {node[:12]}"
    try:
        result = replace(codec.from_json(kind, finding.evidence), run=run_name(run))
    except UserError as error:
        return StoredAnswer(node, finding.why, about, (Section.of("", finding.why, f"It cannot be shown whole: {error}."),))
    key = result.attempt if isinstance(result, Why) else result.node
    caveats = [Section.of("Before you trust it", "\n".join(result.caveats))] if result.caveats else []
    return StoredAnswer(
        key, result.headline, f"{about.partition(' ')[0]} {key[:12]} of {result.tree}", (*result.sections(), *caveats)
    )


def in_code(text: str) -> list[tuple[str, bool]]:
    """``text`` in pieces, each with whether it stood between backticks."""
    parts = text.split("`")
    return [(part, at % 2 == 1 and at < len(parts) - 1) for at, part in enumerate(parts)]


def run_name(run: Run) -> str:
    """The run as commands name it: its folder, from the current one where it lies below."""
    folder = Path(run.folder)
    if folder.is_absolute() and folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    return visible(str(folder))


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
    }.get(station, "")
