"""People: the task as one web page, and the data it leaves, read back through the filters of section 6."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.files import reason
from ramify.methods.theory_loop.domain import COLUMNS, Attendance, Data, Design, LeftOut, PersonReport, TheoryError, read_design
from ramify.render.numbers import percent

PAGE_COLUMNS = (
    *(
        "subject_id",
        "design",
        "trial",
        "option_a_ratings",
        "option_b_ratings",
        "left",
        "key",
        "response",
        "rt_ms",
        "off_tab_ms",
        "bot",
        "consent",
    ),
)
SAME_KEY, ALTERNATES, FASTEST_MS, OFF_TAB_MS = 0.95, 0.95, 1200.0, 60_000.0
"""Who is left out: one key in so large a share of trials; switching as often; faster on average; longer away from the tab."""
MOST_BYTES = 200 << 20
CONSENT = """You take part in a study of how people choose. You will make about {trials} choices with two keys; it takes about \
{minutes} minutes. We record your choices, their times, whether you left this tab, and an identifier that you choose or that is \
made at random; nothing else, and nothing leaves this page but the file that you save. You may stop at any time by closing the \
page."""


def task_page(design: Design, title: str = "A study of choices", consent: str = "", contact: str = "") -> str:
    """The task as one HTML page: consent, instructions, trials by keyboard with their times,
    and a CSV to save. It requests nothing."""
    template = (resources.files("ramify.methods.theory_loop") / "task.html").read_text(encoding="utf-8")
    trials = design.pairs * design.repeats
    text = consent or CONSENT.format(trials=trials, minutes=max(1, math.ceil(trials * 4 / 60)))
    about = {
        "hash": design.hash,
        "validities": list(design.validities),
        "a": [list(one) for one in design.a],
        "b": [list(one) for one in design.b],
        "rating_max": design.rating_max,
        "repeats": design.repeats,
        "columns": list(PAGE_COLUMNS),
        "title": title,
        "consent": text,
        "contact": contact,
        "scale": "with 1 (good) or 0 (bad)" if design.rating_max == 1 else f"from 0 (worst) to {design.rating_max} (best)",
    }
    data = json.dumps(about, ensure_ascii=True).translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&'"})
    page = template.replace("@DATA@", data)
    for mark, tag in (("@SCRIPT@", "script"), ("@STYLE@", "style")):
        inside = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        assert inside is not None
        page = page.replace(mark, "'sha256-" + base64.b64encode(hashlib.sha256(inside[1].encode()).digest()).decode() + "'")
    return page


Pair = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Person:
    """One person's trials, and whether they are kept."""

    order: tuple[int, ...]
    response: tuple[int, ...]
    report: PersonReport

    @property
    def subject(self) -> str:
        """Their identifier."""
        return self.report.subject

    @property
    def dropped(self) -> str:
        """Why they are left out; empty where they are kept."""
        return self.report.dropped


@dataclass(frozen=True)
class HumanTrial:
    """A row of the page's file; what is None or empty is not filtered on."""

    subject: str
    pair: int
    response: int
    key: str
    rt: float | None
    off: float | None
    bot: bool


def read_people(path: Path, design: Design) -> list[Person]:
    """The people in a CSV of the page, or in any CSV or JSON lines with ``subject_id, option_a_ratings, option_b_ratings,
    response``.

    Rows are trials in the order in which they were made. What is missing (times, keys,
    flags) is not filtered on. Raises UserError naming line and field.
    """
    pairs = {pair: p for p, pair in enumerate(zip(design.a, design.b, strict=True))}
    rows: dict[str, list[HumanTrial]] = {}
    for place, row in _rows(path):
        options = _options(row, place)
        if row.get("design") and row["design"] != design.hash:
            raise UserError(
                f"{place}: this row is of another experiment, design {str(row['design'])[:20]}; the experiment that waits is "
                f"{design.hash}"
            )
        if options not in pairs:
            raise UserError(f"{place}: the pair {list(options[0])} and {list(options[1])} is not in the experiment")
        read = _trial(row, place, pairs[options])
        rows.setdefault(read.subject, []).append(read)
    return [_person(subject, trials, design) for subject, trials in rows.items()]


def read_study(path: Path) -> tuple[Design, list[Person]]:
    """The experiment that a file of choices shows, and its people: the pairs that most of them saw; who saw others is dropped.

    ``validities`` are those of the first row that names them, else :func:`presumed`. Raises UserError naming line and field.
    """
    rows: dict[str, list[tuple[Pair, str, Mapping[str, Any]]]] = {}
    validities: tuple[float, ...] = ()
    for place, row in _rows(path):
        options = _options(row, place)
        rows.setdefault(_subject(row, place), []).append((options, place, row))
        if not validities and row.get("validities"):
            validities = _listed(row, "validities", place, float)
    seen = {subject: tuple(sorted({options for options, _, _ in trials})) for subject, trials in rows.items()}
    most = Counter(seen.values()).most_common(1)[0][0]
    ratings = [rating for pair in most for side in pair for rating in side]
    try:
        design = read_design(
            {
                "validities": list(validities or presumed(len(most[0][0]))),
                "trial_a_ratings": [list(a) for a, _ in most],
                "trial_b_ratings": [list(b) for _, b in most],
                "rating_max": max(1, *ratings),
                "rationale": f"as {path.name} shows it",
            }
        )
    except TheoryError as error:
        raise UserError(f"{path}: {error}") from None
    index = {pair: p for p, pair in enumerate(most)}
    people = []
    for subject, trials in rows.items():
        kept = [_trial(row, place, index[options]) for options, place, row in trials if options in index]
        others = len(set(seen[subject]) - set(most))
        person = _person(subject, kept, design)
        why = f"saw {others} pairs that most others did not" if others else person.dropped
        people.append(replace(person, report=replace(person.report, dropped=why)))
    return design, people


def presumed(cues: int) -> tuple[float, ...]:
    """Validities where a file names none: from .9 down to .6 in the order of the cues, as in Hilbig and Moshagen (2014)."""
    return tuple(round(float(v), 3) for v in np.linspace(0.9, 0.6, cues))


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each row of a CSV or of JSON lines, with its place. Raises UserError where there is none, or one lacks a column."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is larger than {MOST_BYTES >> 20} MB")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from None
    rows = iter(_json_rows(path, text) if text.lstrip().startswith("{") else _csv_rows(path, text))
    first = next(rows, None)
    if first is None:
        raise UserError(f"{path} holds no trial")
    yield first
    yield from rows


def _json_rows(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number} is not an object with {', '.join(COLUMNS)}")
        _has_columns(f"{path}:{number}", row)
        yield f"{path}:{number}", row


def _csv_rows(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text))
    try:
        _has_columns(str(path), reader.fieldnames or [])
        for row in reader:
            yield f"{path}:{reader.line_num}", row
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: {error}") from None


def _has_columns(place: str, names: Collection[str]) -> None:
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise UserError(f"{place}: the column '{missing[0]}' is missing; there are {', '.join(map(str, names)) or 'none'}")


def _listed(row: Mapping[str, Any], name: str, place: str, kind: type[float]) -> tuple[Any, ...]:
    """A list in a row, as a list or as its JSON."""
    try:
        given = row[name] if isinstance(row[name], list) else json.loads(row[name] or "")
        return tuple(kind(x) for x in given)
    except (ValueError, TypeError, RecursionError, OverflowError):
        raise UserError(f"{place}: {name} is {str(row[name])!r:.40}, not a list of numbers such as [0, 1]") from None


def _options(row: Mapping[str, Any], place: str) -> Pair:
    return _listed(row, "option_a_ratings", place, int), _listed(row, "option_b_ratings", place, int)


def _subject(row: Mapping[str, Any], place: str) -> str:
    subject = "" if row["subject_id"] is None else str(row["subject_id"]).strip()
    if not subject or len(subject) > 200:
        raise UserError(f"{place}: subject_id is empty or longer than 200 characters")
    return subject


def _trial(row: Mapping[str, Any], place: str, pair: int) -> HumanTrial:
    if str(row["response"]).strip() not in ("0", "1"):
        raise UserError(f"{place}: response is {str(row['response'])!r:.40}, which is neither 0 (A) nor 1 (B)")
    return HumanTrial(
        _subject(row, place),
        pair,
        int(row["response"]),
        str(row.get("key") or ""),
        _number(row.get("rt_ms"), place, "rt_ms"),
        _number(row.get("off_tab_ms"), place, "off_tab_ms"),
        str(row.get("bot") or "").strip().lower() in ("1", "true", "yes"),
    )


def _number(text: Any, place: str, name: str) -> float | None:
    if text is None or str(text).strip() == "":
        return None
    try:
        found = float(text)
    except (ValueError, TypeError):
        found = math.nan
    if not math.isfinite(found) or found < 0:
        raise UserError(f"{place}: {name} is {str(text)!r:.40}, which is not a time in milliseconds")
    return found


def _person(subject: str, trials: list[HumanTrial], design: Design) -> Person:
    keys = [trial.key for trial in trials]
    known = bool(trials) and all(keys)  # a choice is not a key: who always follows a theory may choose one option throughout
    times = [one.rt for one in trials if one.rt is not None]
    away = [one.off for one in trials if one.off is not None]
    switches = [first != second for first, second in itertools.pairwise(keys)]
    report = PersonReport(
        subject=subject,
        trials=len(trials),
        same_key=max(keys.count(key) for key in set(keys)) / len(keys) if known else None,
        alternates=sum(switches) / len(switches) if known and switches else None,
        mean_rt_ms=sum(times) / len(times) if times else None,
        off_tab_ms=max(away) if away else None,
        bot=any(trial.bot for trial in trials),
    )
    wanted, rt, off = design.pairs * design.repeats, report.mean_rt_ms, report.off_tab_ms
    rules = [
        (report.bot, "the browser said that it is driven by a program"),
        (len(trials) != wanted, f"{len(trials)} of {wanted} trials"),
        ((report.same_key or 0.0) >= SAME_KEY, f"the same key in {percent(report.same_key, 0)} of trials"),
        ((report.alternates or 0.0) >= ALTERNATES, f"alternated in {percent(report.alternates, 0)} of trials"),
        (rt is not None and rt < FASTEST_MS, f"{rt or 0:.0f} ms a choice on average"),
        (off is not None and off > OFF_TAB_MS, f"{(off or 0) / 1000:.0f} s away from the tab"),
    ]
    dropped = next((why for true, why in rules if true), "")
    return Person(tuple(one.pair for one in trials), tuple(one.response for one in trials), replace(report, dropped=dropped))


def read_data(path: Path, design: Design | None = None) -> Data:
    """The choices of everybody who is kept; without a ``design`` of the experiment that the file shows. Raises UserError."""
    if design is None:
        design, people = read_study(path)
    else:
        people = read_people(path, design)
    data = data_of(people, design)
    if not len(data.order):
        raise UserError(f"{path}: nobody is left after the quality filters")
    return data


def data_of(people: list[Person], design: Design, most: int | None = None) -> Data:
    """The choices of the people who are kept, the first ``most`` of them;
    dropped ones stay in ``extra`` with their choices and the reason."""
    kept = [one for one in people if not one.dropped][:most]
    size = design.pairs * design.repeats
    order, response = (
        np.array(side, np.int64).reshape(len(kept), size) for side in ([p.order for p in kept], [p.response for p in kept])
    )
    left = tuple(LeftOut(**asdict(one.report), order=one.order, response=one.response) for one in people if one.dropped)
    extra = Attendance(len(people), dropped=left, reports=tuple(one.report for one in people if not one.dropped))
    return Data(design, order, response, tuple(one.subject for one in kept), extra)
