"""The pages that are about no single run, and those of what verbs stored in one: home, all runs, the words, the stations."""

from __future__ import annotations

import functools
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from ramify.base.errors import UserError
from ramify.base.words import plural
from ramify.model.address import named_endpoints
from ramify.model.probe import probe
from ramify.render.escape import visible
from ramify.render.numbers import percent, percent_interval
from ramify.render.result import to_html
from ramify.render.terminal import short
from ramify.rollout.commands import run_name
from ramify.trace.db import Run
from ramify.web.pages import markup, page, stored_answers
from ramify.web.shelf import STATES, ListedRun, Shelf
from ramify.web.way import QUESTIONS, Nav, advice, in_code, key_of, name_of
from ramify.web.words import WORDS

ASKED_AGAIN = 60.0
"""Seconds after which an endpoint is asked again whether it answers."""
HARNESSES = {
    "claude": 'claude -p "TASK" --allowedTools Bash,Edit',
    "codex": 'codex exec --dangerously-bypass-approvals-and-sandbox -c openai_base_url={url} "TASK"',
    "mini": 'mini -m openai/MODEL -y --exit-immediately -t "TASK"',
    "aider": 'aider --model openai/MODEL --yes-always --no-auto-commits --message "TASK" FILE',
    "opencode": 'opencode run -m openai/gpt-5 "TASK"',
}
"""Coding agents by the name of their command, with the words that `ramify record` starts them with (docs/howto/record.md)."""
LISTED = 200
"""Runs of one page of the list."""
RECENT = 8
MOST_LEFT = 20
COLUMNS = ("run", "state", "success", "attempts", "tokens", "model", "environment", "made by", "holds", "changed")
SORTS: Mapping[str, Callable[[ListedRun], Any]] = {
    "changed": lambda row: -row.changed,
    "run": lambda row: row.name,
    "state": lambda row: list(STATES).index(row.state),
    "success": lambda row: (row.success is None, row.success or 0.0),
    "attempts": lambda row: -row.attempts,
    "tokens": lambda row: -(row.tokens or 0),
    "model": lambda row: (not row.model, row.model),
    "environment": lambda row: (not row.env, row.env),
    "made by": lambda row: row.kind,
}
"""Columns that the list is sorted by, each with what it compares."""
FILTERS: Mapping[str, Callable[[ListedRun], str]] = {
    "state": lambda row: row.state,
    "verb": lambda row: row.kind,
    "model": lambda row: row.model,
    "environment": lambda row: row.env,
}


def row_view(row: ListedRun) -> dict[str, Any]:
    """A run as the tables show it."""
    return {
        "name": visible(row.name),
        "href": f"/run/{key_of(row.name)}/",
        "state": row.state,
        "why": row.trouble,
        "verb": visible(row.kind) or "-",
        "success": "-" if row.success is None else percent(row.success),
        "interval": "" if row.interval is None else percent_interval(row.interval),
        "attempts": row.attempts or "-",
        "tokens": "-" if row.tokens is None else short(row.tokens),
        "model": row.model or "-",
        "env": row.env or "-",
        "changed": datetime.fromtimestamp(row.changed).strftime("%Y-%m-%d %H:%M"),
        "answers": ", ".join(row.answers),
    }


def runs_html(shelf: Shelf, asked: Mapping[str, str]) -> str:
    """The list of all runs, sorted and filtered as the address says: ``sort``, ``back``, ``page``, and a value of each filter."""
    every = shelf.runs()
    sort = asked.get("sort", "changed") if asked.get("sort") in SORTS else "changed"
    back = asked.get("back") == "1"
    chosen = {name: asked[name] for name in FILTERS if name in asked}
    rows = [row for row in every if all(FILTERS[name](row) == value for name, value in chosen.items())]
    rows = sorted(rows, key=SORTS[sort], reverse=back)
    pages = max(1, -(-len(rows) // LISTED))
    number = asked.get("page", "1")
    at = min(max(1, int(number) if number.isdecimal() and len(number) < 9 else 1), pages)

    def link(**change: str) -> str:
        kept = {"sort": sort, "back": "1" if back else "", **chosen, **change}
        return "/runs?" + urlencode({name: value for name, value in kept.items() if value})

    heads = [
        (name, link(sort=name, back="1" if name == sort and not back else "") if name in SORTS else "", name == sort)
        for name in COLUMNS
    ]
    return page(
        "runs.html",
        "Runs",
        Nav("runs"),
        rows=[row_view(row) for row in rows[(at - 1) * LISTED : at * LISTED]],
        heads=heads,
        back=back,
        filters=_filters(every, chosen, link),
        shown=plural(len(rows), "run") if not chosen else f"{len(rows)} of {plural(len(every), 'run')}",
        folder=run_name(shelf.root),
        cut=shelf.cut,
        page=at,
        pages=pages,
        before=link(page=str(at - 1)),
        after=link(page=str(at + 1)),
        states=STATES,
    )


def _filters(
    every: Sequence[ListedRun], chosen: Mapping[str, str], link: Callable[..., str]
) -> list[tuple[str, list[tuple[str, int, str, bool]]]]:
    """Of each filter its values: text, how many runs, address, whether it is chosen. A filter of one value is left out."""
    shown = []
    for name, value in FILTERS.items():
        counts = Counter(value(row) for row in every if value(row)).most_common(12)
        if len(counts) > 1 or name in chosen:
            links = [
                (visible(text), n, link(**{name: "" if chosen.get(name) == text else text}), chosen.get(name) == text)
                for text, n in counts
            ]
            shown.append((name, links))
    return shown


@dataclass(frozen=True, slots=True)
class Need:
    """One line of the newcomer's checklist."""

    what: str
    says: str
    """What there is; empty where there is nothing yet."""
    command: str
    """What to do where there is nothing."""


def needs(rows: Sequence[ListedRun]) -> list[Need]:
    """What there must be before a step can be named: a model, an agent, a task, a run, outcomes, an answer."""
    here = [name for name in HARNESSES if shutil.which(name)]
    urls = [url.rpartition("@")[2] for url in named_endpoints()]
    alive = [visible(url) for url in urls if _answers(url, int(time.time() / ASKED_AGAIN))]
    repository = next((path for path in (Path.cwd(), *Path.cwd().parents) if (path / ".git").exists()), None)
    judged = [row for row in rows if row.success is not None]
    asked = [row for row in rows if "why" in row.answers]
    first = "ramify rollout --attempts 12"
    if alive and here and repository is not None:
        first = f'ramify record --check "pytest -q" --model chat:MODEL@{urls[0]} -- {HARNESSES[here[0]]}'
    why = f"ramify why {shlex.quote(run_name(judged[0].folder))}" if judged else "ramify why RUN"
    return [
        Need(
            "A model that answers",
            ", ".join(alive),
            f"ramify doctor --endpoint {urls[0] if urls else 'http://127.0.0.1:8000/v1'}",
        ),
        Need("A coding agent", ", ".join(here), "pip install mini-swe-agent"),
        Need(
            "A task: a git repository with a check",
            "" if repository is None else visible(str(repository)),
            "cd REPOSITORY && ramify ui",
        ),
        Need("A run", plural(len(rows), "run") if rows else "", first),
        Need("Attempts whose outcome is known", plural(len(judged), "run") if judged else "", first),
        Need("The step that lost an attempt", plural(len(asked), "run") if asked else "", why),
    ]


@functools.lru_cache(64)
def _answers(url: str, when: int) -> bool:
    """Whether an endpoint answers: asked for its models, again ``when`` time has passed."""
    return bool(probe(url, timeout=1.0)["ok"])


def home_html(shelf: Shelf) -> str:
    """Where a person begins: what is missing, what was left off, the last runs."""
    rows = shelf.runs()
    left = [(row_view(row), work) for row in rows for work in row.left]
    counts = Counter(row.state for row in rows)
    return page(
        "home.html",
        "ramify",
        Nav("home"),
        needs=needs(rows),
        settled=any("why" in row.answers for row in rows),
        left=left[:MOST_LEFT],
        more=max(0, len(left) - MOST_LEFT),
        recent=[row_view(row) for row in rows[:RECENT]],
        count=len(rows),
        states=[(state, counts[state]) for state in STATES if counts[state]],
        folder=run_name(shelf.root),
    )


def words_html() -> str:
    """The words, in one place."""
    return page("words.html", "Words", Nav("words"), words=[(word, word.replace(" ", "-"), text) for word, text in WORDS.items()])


def station_html(run: Run, station: str, nav: Nav, key: str = "") -> str:
    """What a verb stored in the run: all its answers, or the one called ``key``; the command where there is none.
    Raises UserError where there is none called so."""
    known = stored_answers(run, nav, station)
    if key and not (known := [entry for entry in known if entry[1].key == name_of(key)]):
        raise UserError(f"the run holds no result '{key}' of {station}")
    whole = [known[0][1]] if len(known) == 1 else []
    says, command = advice(run, station) if station != "more" else ("", "")
    return page(
        "station.html",
        f"{station}: {nav.run}",
        nav,
        question=QUESTIONS[station],
        answers=known,
        sections=[markup(to_html(answer.sections, answer.about)) for answer in whole],
        steps=[
            f"{nav.base}/tree/{quote(answer.step[0], safe='')}#step-{answer.step[1]}"
            for answer in whole
            if answer.step is not None
        ],
        says=in_code(says),
        command=command,
    )
