"""The way of a run on the pages: record, why, cause, fix, test. What each verb stored in the run, and the command where it has
stored nothing yet."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.jobs.context.answer import WhyContext
from ramify.jobs.context.ask import MAKER as CAUSE
from ramify.jobs.why.answer import Why
from ramify.jobs.why.findings import MAKER as WHY
from ramify.jobs.why.findings import found
from ramify.model.address import named_endpoints
from ramify.render.escape import visible
from ramify.render.numbers import number
from ramify.render.result import Section, table
from ramify.render.sections import sections_of_kept
from ramify.rollout.commands import commands, run_name
from ramify.rollout.fork import was_interrupted
from ramify.trace.db import Run
from ramify.trace.node import Finding, KeptResult, Provenance
from ramify.trace.outcome import settled, successes

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


def _station(maker: str) -> str:
    """The station with what ``maker`` stored. `ramify fix` and `ramify test` keep results under names of their own, as ``fix 2``
    and ``test against``."""
    verb = maker.partition(" ")[0]
    return {WHY: "why", CAUSE: "cause"}.get(maker, verb if verb in ("fix", "test") else "more")


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
    step: tuple[str, str] | None = None
    """Tree and node that it is about."""

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """The headline in pieces, each with whether it stood between backticks."""
        return in_code(self.headline)


@dataclass(frozen=True, slots=True)
class LeftOff:
    """Work that was begun in a run and did not end."""

    what: str
    command: str
    """Continues it; empty where the same command does, with the settings that it had."""


def key_of(name: str) -> str:
    """A run's name (its folder below that of all runs) as one part of an address."""
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="")


def name_of(key: str) -> str:
    """Inverse of :func:`key_of`, of a part that is decoded."""
    return key.replace("~1", "/").replace("~0", "~")


def nav_of(run: Run, name: str, here: str) -> Nav:
    """The navigation of a page of ``run``, which is called ``name`` below the folder of all runs."""
    base = f"/run/{key_of(name)}"
    counts = dict.fromkeys(STATIONS, 0)
    for maker, n in run.makers().items():
        station = _station(maker)
        counts[station] += n if station != "more" else maker != run.kind
    way = [(station, f"{base}/{station}", str(n or "")) for station, n in counts.items() if n or station != "more"]
    return Nav(here, name, base, (("record", f"{base}/", ""), *way))


def answers(run: Run, station: str) -> list[StoredAnswer]:
    """What the verb of a station stored in the run, in order of writing."""
    kept = run.results()
    if station == "why":
        every = [held for held in kept if held.maker == WHY and "all" in held.result]
        whole = [_kept(run, held, "one attempt of every task") for held in every]
        return whole + [_found(finding, Why, run) for finding in run.findings(maker=WHY)]
    if station == "cause":
        return [_found(finding, WhyContext, run) for finding in run.findings(maker=CAUSE)]
    if station != "more":
        return [_kept(run, held, "the run") for held in kept if _station(held.maker) == station]
    here = [maker for maker in run.makers() if _station(maker) == "more" and maker != run.kind]
    whole = [_kept(run, held, held.maker) for held in kept if held.maker in here]
    listed = {held.maker for held in kept}
    makers = [maker for maker in here if maker not in listed]
    return whole + [_findings(maker, run.findings(maker=maker)) for maker in makers]


def _kept(run: Run, kept: KeptResult, about: str) -> StoredAnswer:
    sections = sections_of_kept(run, kept)
    texts = (part for section in sections for part in section.parts if isinstance(part, str))
    return StoredAnswer(kept.maker, next(texts, "").partition("\n")[0], about, sections)


def _findings(maker: str, findings: Sequence[Finding]) -> StoredAnswer:
    """Findings of a method that kept no result, as a table."""
    rows = [
        (each.name, (each.node or "the run")[:12], None if each.value is None else f"{number(each.value)} {each.unit}", each.why)
        for each in findings
    ]
    grid = table(("what", "where", "value", "why"), rows)
    return StoredAnswer(maker, findings[0].why, maker, (Section.of("", grid),))


def _found(finding: Finding, kind: type[Why] | type[WhyContext], run: Run) -> StoredAnswer:
    """An answer that is a finding. Of one that cannot be read, as a foreign run may hold, what it says in words."""
    node = finding.node or ""
    about = f"{'attempt' if kind is Why else 'step'} {node[:12]}"
    try:
        result = replace(codec.from_json(kind, finding.evidence), run=run_name(run.folder))
    except UserError as error:
        return StoredAnswer(node, finding.why, about, (Section.of("", finding.why, f"It cannot be shown whole: {error}."),))
    key = result.attempt if isinstance(result, Why) else result.node
    caveats = [Section.of("Before you trust it", "\n".join(result.caveats))] if result.caveats else []
    about = f"{about.partition(' ')[0]} {key[:12]} of {result.tree}"
    return StoredAnswer(key, result.headline, about, (*result.sections(), *caveats), (result.tree, result.node or key))


def in_code(text: str) -> list[tuple[str, bool]]:
    """``text`` in pieces, each with whether it stood between backticks."""
    parts = text.split("`")
    return [(part, at % 2 == 1 and at < len(parts) - 1) for at, part in enumerate(parts)]


def model_of(run: Run) -> str:
    """The model that the run names, else the first that sampled in it; empty where nobody said."""
    named = run.config.get("model")
    first = None if isinstance(named, str) else next(run.each(Provenance), None)
    return visible(named if isinstance(named, str) else "" if first is None else first.model)


def _told_model(run: Run) -> str:
    """The option that names the model of a run that does not: at the first of this machine's endpoints, else at URL."""
    if isinstance(run.config.get("model"), str):
        return ""
    name, url = model_of(run) or "MODEL", next(iter(named_endpoints()), "URL").rpartition("@")[2]
    return " --model " + shlex.quote(f"chat:{name}@{url}")


def advice(run: Run, station: str) -> tuple[str, str]:
    """What to know before asking the question of a station (empty where nothing), and the command that does what comes next: it
    asks the question, or makes what it needs. Words in capitals stand for what nobody but the reader knows."""
    able = commands(run)
    if not any(success is not None for _, success in successes(run, settled(run))):
        outcomes = json.dumps({info.name: True for info in run.trees()[:1]}, ensure_ascii=False)
        says = f"Nobody said how the attempts ended. Say it in a file: `{visible(outcomes)}`, with an outcome for each task."
        return says, f"ramify import --run {able.name} --outcomes FILE"
    if station in ("why", "test"):
        return "", able.why() if station == "why" else f"ramify test {able.name}"
    asked = [why for why in found(run) if why.steps]
    named = [why for why in asked if why.node is not None and not why.success]
    if not asked:
        return "No step was named yet; that comes first.", able.why()
    node = "" if named else asked[-1].steps[-1].node[:12]
    says = "" if named else "No step stands out in what was asked; this is about the last one."
    model = "" if able.plays else _told_model(run)
    if not able.plays:
        says += " The run does not name who plays: put what it is for the words in capitals."
    if station == "cause":
        return says.strip(), able.why(node, f" --context{model}")
    env = "" if able.plays or isinstance(run.config.get("env"), str) else " --env ENV"
    return says.strip(), f"ramify fix {able.name}{node and f' {node}'} --rule TEXT{model}{env}"


def left_off(run: Run) -> Iterator[LeftOff]:
    """What was begun in a run and is not done: the run itself, then verbs about it."""
    named = shlex.quote(run_name(run.folder))
    kept = run.makers()
    resumed = LeftOff(f"ramify {run.kind}", f"ramify resume {named}")
    if run.kind == "improve":
        if not run.journal("result", "improve"):
            yield resumed
    elif run.kind in ("rollout", "record"):
        c = run.config
        tasks = int(c.get("count", 1)) if c.get("tasks") is None else len(run.trees())
        if len(run.journal("attempt")) < tasks * int(c.get("attempts", 1)):
            yield resumed
    elif run.kind == "rollout --tree":
        if not run.journal("tree"):
            yield resumed
    elif " " in run.kind and run.kind not in (*kept, "serve --record") and not run.kind.startswith("orchestrator "):
        yield LeftOff(f"ramify {run.kind}", "")
    asked = {run.node(found.node).tree for found in run.findings(maker=WHY) if found.node is not None}
    for tree, purpose, _ in run.purposes():
        if purpose.startswith(f"{WHY} ") and not purpose.startswith(CAUSE) and tree not in asked:
            asked.add(tree)
            yield LeftOff("ramify why", f"ramify why {named} {shlex.quote(visible(tree))}")
    if run.journal(CAUSE) and not run.findings(maker=CAUSE):
        yield LeftOff("ramify why --context", f"ramify why {named} --context")
    if len(run.journal("fix")) > sum(_station(maker) == "fix" for maker in kept):
        yield LeftOff("ramify fix", "")  # where the files of its candidates are, the run does not know
    if was_interrupted(run):
        yield LeftOff("ramify fork", "")  # nor its edits
