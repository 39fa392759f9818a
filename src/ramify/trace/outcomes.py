"""Outcomes that lie in other files than the attempts: a benchmark's report, a verifier's reward beside a trial, a table."""

from __future__ import annotations

import csv
import json
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError, nearest
from ramify.base.files import reason
from ramify.trace.aliases import ALIASES, IMPORTED, KNOWN, Judged
from ramify.trace.db import Run
from ramify.trace.foreign import end_attempt
from ramify.trace.lines import MAX_LINE, read_items, read_json
from ramify.trace.node import Node

KIND = "imported"
"""Journal entries of a run: a file it was made from, by the hash of its bytes."""
_LISTS = {
    **dict.fromkeys(("resolved_ids", "resolved"), True),
    **dict.fromkeys(("unresolved_ids", "unresolved", "empty_patch_ids", "no_generation"), False),
    "error_ids": "the evaluation failed",
}
"""SWE-bench's reports: list of ids -> outcome. What could not be evaluated has none."""
_YES = ("true", "yes", "pass", "passed", "resolved", "success", "solved", "correct")
_NO = ("false", "no", "fail", "failed", "unresolved", "failure", "unsolved", "incorrect", "wrong")
_FILES = ("path", "file", "filename", "trajectory", "trial_name", "trial")
_BESIDE = ("reward.txt", "reward.json")
_RESULTS = ("results.json", "report.json")
_REPORTS = (*_BESIDE, "report.json")
_ENDINGS = (".gz", ".json", ".jsonl", ".ndjson", ".traj", ".parquet", ".eval")


def read_outcomes(path: Path) -> dict[str, Judged]:
    """Task or file -> how its attempt ended. ``path``: a report of SWE-bench, JSON, JSON lines or a table (.csv, .tsv) of tasks
    or files with an outcome each, or a folder with a ``verifier/reward.txt``, ``reward.json`` or ``report.json`` a trial.

    Raises UserError naming file and entry on what is not an outcome."""
    if path.is_fifo():
        raise UserError(f"{path} is a pipe, and outcomes are read more than once: write them to a file first")
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.name in _REPORTS)
        if not files:
            raise UserError(f"{path} is a folder without any of {', '.join(_REPORTS)}")
        return {key: judged for file in files for key, judged in _of_trial(file, path).items()}
    if path.name in _BESIDE:
        return _of_trial(path, path.parent.parent)
    try:
        outcomes = dict(_table(path)) if path.suffix.lower() in (".csv", ".tsv") else dict(_json(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error
    if not outcomes:
        raise UserError(f"{path} names no outcome")
    return outcomes


def _of_trial(file: Path, root: Path) -> dict[str, Judged]:
    if file.name == "report.json":
        return dict(_json(file))
    trial = file.parent.parent if file.parent.name == "verifier" else file.parent
    name = trial.name if trial == root or root not in trial.parents else str(trial.relative_to(root))
    return {name: _reward(file)}


def _reward(file: Path) -> Judged:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise UserError(f"cannot read {file}: {error}") from error
    return outcome_of(_cell(text), str(file))


def beside(file: Path, root: Path) -> Judged | None:
    """The outcome in a ``verifier/reward.txt`` or ``reward.json`` beside a file, in its folder or one above it up to ``root``."""
    for folder in _above(file, root):
        for name in _BESIDE:
            if (folder / "verifier" / name).is_file():
                return _reward(folder / "verifier" / name)
    return None


def has_reports(file: Path, root: Path) -> bool:
    """Whether anything lies beside a file that :func:`reported` may read."""
    return any((folder / name).exists() for folder in _above(file, root) for name in (*_RESULTS, "results", "logs"))


def reported(file: Path, root: Path, tasks: Collection[str]) -> dict[str, Judged]:
    """Outcomes of ``tasks`` in the reports of SWE-bench beside a file: ``results.json`` or ``report.json`` in its folder, in
    ``results`` there, or in ``logs/TASK``, or in a folder above it up to ``root``. The nearest counts."""
    told: dict[str, Judged] = {}
    for folder in reversed(_above(file, root)):
        files = [place / name for place in (folder / "results", folder) for name in _RESULTS]
        if (folder / "logs").is_dir():
            files += [folder / "logs" / task / "report.json" for task in tasks if Path(task).name == task]
        for report in files:
            if report.is_file() and report != file and report.stat().st_size <= MAX_LINE:
                told |= {task: judged for task, judged in _of_report(report, report.stat().st_mtime_ns).items() if task in tasks}
    return told


def is_report(file: Path) -> bool:
    """Whether a file is one that :func:`reported` takes outcomes from."""
    return file.name in _RESULTS and file.stat().st_size <= MAX_LINE and bool(_of_report(file, file.stat().st_mtime_ns))


@lru_cache(maxsize=8)
def _of_report(file: Path, changed: int) -> Mapping[str, Judged]:
    """The outcomes in a file, where it has the form of a report: lists of ids, or ``resolved`` by id; else nothing."""
    try:
        report = read_json(file, dict)
    except UserError:
        return {}
    lists = {name: report[name] for name in _LISTS if isinstance(report.get(name), list)}
    flags = all(isinstance(value, Mapping) and isinstance(value.get("resolved"), bool) for value in report.values())
    if not lists and not (flags and report):
        return {}
    try:
        return dict(_json(file))
    except UserError:
        return {}


def _above(file: Path, root: Path) -> list[Path]:
    """The folders in which something may lie that is about a file, the nearest first."""
    if str(file) == "-":
        return []
    if file == root:
        return [file.parent, file.parent.parent]
    return [folder for folder in file.parents if folder == root or root in folder.parents]


def outcome_of(value: Any, place: str) -> Judged:
    """A number, true or false, a word for it, or an object with an outcome under a usual name. Raises UserError on others."""
    if isinstance(value, str) and value.strip().lower() in (*_YES, *_NO):
        value = value.strip().lower() in _YES
    if isinstance(value, (bool, int, float)):
        return Judged({IMPORTED: float(value)}, value if isinstance(value, bool) else None, frozenset())
    if isinstance(value, Mapping):
        judged = KNOWN.judged(value, place)
        if judged.scores or judged.failure is not None:
            return judged
    raise UserError(
        f"{place}: {str(value)[:60]!r} is not an outcome: it is a number, true or false, or an object with one under 'reward'"
    )


def _json(path: Path) -> Iterator[tuple[str, Judged]]:
    for number, record in read_items(path):
        place = f"{path}:{number}"
        lists = {name: record[name] for name in _LISTS if isinstance(record.get(name), list)}
        task = KNOWN.task_of(record, place) if not lists and _is_record(record) else None
        file = next((name for name in _FILES if isinstance(record.get(name), str)), None)
        if lists:
            for name, ids in lists.items():
                for key in ids:
                    says = _LISTS[name]
                    yield str(key), outcome_of(says if isinstance(says, bool) else {"error": says}, f"{place}: '{name}'")
        elif file is not None and _is_record(record):
            yield record[file], outcome_of(record, place)
        elif task is not None:
            yield str(task.value), outcome_of(record, place)
        else:
            for key, value in record.items():
                if value is not None:
                    yield key, outcome_of(value, f"{place}: '{key}'")


def _is_record(record: Mapping[str, Any]) -> bool:
    """Whether an object is one attempt with its outcome, and not a map of tasks."""
    names = {*ALIASES["reward"], *ALIASES["success"]}
    return bool(names & record.keys()) and bool({*ALIASES["task"], *_FILES} & record.keys())


def _table(path: Path) -> Iterator[tuple[str, Judged]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ","))
    names = {*ALIASES["reward"], *ALIASES["success"]}
    head = [cell.strip() for cell in rows[0]] if rows else []
    titled = bool(names & set(head))
    for number, row in enumerate(rows[titled:], 1 + titled):
        if any(row):
            record = {name: _cell(cell) for name, cell in zip(head, row, strict=False) if titled}
            keys = [name for name in (*_FILES, *ALIASES["task"]) if record.get(name) is not None]
            if titled and keys:
                yield (
                    str(row[head.index(keys[0])]).strip(),
                    outcome_of({k: v for k, v in record.items() if k in names}, f"{path}:{number}"),
                )
            elif not titled and len(row) == 2:
                yield row[0].strip(), outcome_of(_cell(row[1]), f"{path}:{number}")
            else:
                raise UserError(
                    f"{path}:{number}: a table of outcomes has a column 'task' or 'path' and one called 'reward' or 'success'"
                )


def _cell(text: str) -> Any:
    word = text.strip().lower()
    if word in ("", "nan", "none", "null"):
        return None
    if word in (*_YES, *_NO):
        return word in _YES
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def matching(run: Run, outcomes: Mapping[str, Judged], source: str) -> tuple[int, list[str]]:
    """Give the attempts of a run their outcomes: how many got one, and the names that no attempt has.

    A name is that of a tree or task with one attempt, of a file (its journal entry) that holds one: its path, with or
    without its ending, or a folder it lies in; or of the attempt itself: its trace, session or other id, or that of its
    last node. Raises UserError on a
    name of several attempts, and where no name fits."""
    ends: dict[str, set[str]] = {}
    every = set(run.ends())
    for info in run.trees():
        for name in {info.name, str(info.task.get("id", info.name))}:
            ends.setdefault(name, set()).update(every & set(run.columns(["id"], tree=info.name)["id"]))
    paths: dict[str, set[str]] = {}
    for entry in run.journal(KIND):
        if "end" in entry.payload:
            for name in _names(Path(entry.payload["file"])):
                paths.setdefault(name, set()).add(entry.payload["end"])
    themselves: dict[str, set[str]] = {}
    if any(len(ends.get(key) or paths.get(_plain(key)) or ()) != 1 for key in outcomes):
        for end in every:
            for name in _names_of(run.node(end)):
                themselves.setdefault(name, set()).add(end)
    unmatched = []
    given: dict[str, Judged] = {}
    for key, judged in outcomes.items():
        leaves = ends.get(key) or paths.get(_plain(key)) or themselves.get(key) or set()
        if len(leaves) > 1:
            nodes = ", ".join(sorted(leaf[:12] for leaf in leaves)[:4])
            raise UserError(
                f"{source}: '{key}' is the name of {len(leaves)} attempts, and there is one outcome: name them by their files, "
                f"by the ids of their traces or sessions, or of their last nodes: {nodes}"
            )
        if not leaves:
            unmatched.append(key)
        given |= dict.fromkeys(leaves, judged)
    if not given:
        known = [*ends, *paths, *themselves]
        raise UserError(
            f"{source}: none of its names is a task or file of the run: '{unmatched[0]}' ({nearest(unmatched[0], known)})"
        )
    for end, judged in given.items():
        end_attempt(run, run.node(end), judged, next(iter(run.attempts(leaf=end)), None))
    return len(given), unmatched


def how_to_judge(run: Run) -> str:
    """What to do where nobody judged the attempts of a run, as a clause, with the name of one of them as an example."""
    if run.kind != "import":
        return "choose a --scorer that judged them"
    failed = {record.leaf for record in run.attempts() if record.failure is not None}
    ends = [run.node(end) for end in run.ends() if end not in failed]
    files = {entry.payload.get("end"): str(entry.payload["file"]) for entry in run.journal(KIND)}
    counts = Counter(run.node(end).tree for end in run.ends())
    example = ""
    for end in ends[:1]:
        alone = [end.tree] if counts[end.tree] == 1 else []
        name = next(iter([*([files[end.id]] if end.id in files else []), *alone, *_names_of(end)]))
        example = f", e.g. {json.dumps({name: True}, ensure_ascii=False)}"
    return (
        f"say how they ended with `ramify import --run {shlex.quote(str(run.folder))} --outcomes FILE`, "
        f"FILE holding an outcome by task, file or session{example}"
    )


def _names_of(end: Node) -> Iterator[str]:
    """The ids of an attempt itself that are kept with its last message, and that message's."""
    for place, names in (("record", (*ALIASES["attempt"], "id")), ("response", ("trace", "custom_id"))):
        held = end.data.get(place)
        about: Mapping[str, Any] = held if isinstance(held, Mapping) else {}
        yield from (str(about[name]) for name in names if isinstance(about.get(name), (str, int)))
    yield from (end.id[:12], end.id)


def _plain(name: str) -> str:
    path = name.removeprefix("./").rstrip("/")
    while path.lower().endswith(_ENDINGS):
        path = path.rsplit(".", 1)[0]
    return path


def _names(file: Path) -> Iterator[str]:
    """What a file may be called by: its path, its name, and the folders that it lies in."""
    whole = Path(_plain(str(file)))
    yield str(whole)
    yield whole.name
    for folder in whole.parents:
        if folder.name:
            yield str(folder)
            yield folder.name
