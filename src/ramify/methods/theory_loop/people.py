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
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.files import reason
from ramify.methods.theory_loop.domain import Attendance, Data, Design, LeftOut, PersonReport
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
    """The people in a CSV of the page, or of any with ``subject_id, option_a_ratings, option_b_ratings, response``.

    Rows are trials in the order in which they were made. What is missing (times, keys,
    flags) is not filtered on. Raises UserError naming line and field.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is larger than {MOST_BYTES >> 20} MB")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from None
    reader = csv.DictReader(io.StringIO(text))
    try:
        names = reader.fieldnames or []
        for name in ("subject_id", "option_a_ratings", "option_b_ratings", "response"):
            if name not in names:
                raise UserError(f"{path}: the column '{name}' is missing; there are {', '.join(map(str, names)) or 'none'}")
        rows: dict[str, list[HumanTrial]] = {}
        pairs = {pair: p for p, pair in enumerate(zip(design.a, design.b, strict=True))}
        for row in reader:
            read = _row(row, f"{path}:{reader.line_num}", pairs, design)
            rows.setdefault(read.subject, []).append(read)
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: {error}") from None
    if not rows:
        raise UserError(f"{path} holds no trial")
    return [_person(subject, trials, design) for subject, trials in rows.items()]


def _row(row: Mapping[str, Any], place: str, pairs: Mapping[Any, int], design: Design) -> HumanTrial:
    subject = str(row["subject_id"] or "").strip()
    if not subject or len(subject) > 200:
        raise UserError(f"{place}: subject_id is empty or longer than 200 characters")
    if row.get("design") and row["design"] != design.hash:
        raise UserError(
            f"{place}: this row is of another experiment, design {str(row['design'])[:20]}; the experiment that waits is "
            f"{design.hash}"
        )
    options = []
    for name in ("option_a_ratings", "option_b_ratings"):
        try:
            options.append(tuple(int(x) for x in json.loads(row[name] or "")))
        except (ValueError, TypeError, RecursionError, OverflowError):
            raise UserError(f"{place}: {name} is {str(row[name])!r:.40}, not a list of ratings such as [0, 1]") from None
    pair = pairs.get((options[0], options[1]))
    if pair is None:
        raise UserError(f"{place}: the pair {list(options[0])} and {list(options[1])} is not in the experiment")
    if str(row["response"]).strip() not in ("0", "1"):
        raise UserError(f"{place}: response is {str(row['response'])!r:.40}, which is neither 0 (A) nor 1 (B)")
    return HumanTrial(
        subject,
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
    keys = [one.key or str(one.response) for one in trials]
    times = [one.rt for one in trials if one.rt is not None]
    away = [one.off for one in trials if one.off is not None]
    switches = [first != second for first, second in itertools.pairwise(keys)]
    report = PersonReport(
        subject=subject,
        trials=len(trials),
        same_key=max(keys.count(key) for key in set(keys)) / len(keys),
        alternates=sum(switches) / len(switches) if switches else 0.0,
        mean_rt_ms=sum(times) / len(times) if times else None,
        off_tab_ms=max(away) if away else None,
        bot=any(one.bot for one in trials),
    )
    wanted, rt, off = design.pairs * design.repeats, report.mean_rt_ms, report.off_tab_ms
    rules = [
        (report.bot, "the browser said that it is driven by a program"),
        (len(trials) != wanted, f"{len(trials)} of {wanted} trials"),
        (report.same_key >= SAME_KEY, f"the same key in {percent(report.same_key, 0)} of trials"),
        (report.alternates >= ALTERNATES, f"alternated in {percent(report.alternates, 0)} of trials"),
        (rt is not None and rt < FASTEST_MS, f"{rt or 0:.0f} ms a choice on average"),
        (off is not None and off > OFF_TAB_MS, f"{(off or 0) / 1000:.0f} s away from the tab"),
    ]
    dropped = next((why for true, why in rules if true), "")
    return Person(tuple(one.pair for one in trials), tuple(one.response for one in trials), replace(report, dropped=dropped))


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
