"""Faults that maintainers mended: commits of public repositories that change one file of the code and its tests.

    python -m ramify_experiments.diagnose.histories DIR [--out repro/diagnose-outside.json]
    python -m ramify_experiments.diagnose.histories DIR --null --out repro/diagnose-outside.json

DIR/histories holds clones of :data:`REPOSITORIES` by these names. A case is a commit whose tests pass, and fail once the one file
of the code is as it was before; the truth is what the commit changed. The newest come first, so which there are depends on the
clones. They are measured as those of :mod:`ramify_experiments.diagnose.outside`, into whose record this writes.

``--null`` takes of each case in the record the commit as it was mended, and makes one of its tests wrong: a value that the test
expects is changed, so that it fails while the code is right.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ramify.base.errors import RamifyError
from ramify.base.seeds import generator
from ramify.integrations.harnesses.worktrees import git
from ramify.methods.diagnose.code import is_test
from ramify.stats.ranking import auroc, auroc_interval
from ramify_experiments.diagnose.outside import OutsideCase, boxed, case_of, changed, expecting_other, measured, said

REPOSITORIES: Mapping[str, str] = {
    "click": "src/click/",
    "sqlparse": "sqlparse/",
    "jinja": "src/jinja2/",
    "python-dotenv": "src/dotenv/",
    "attrs": "src/attr/",
    "more-itertools": "more_itertools/",
    "pyparsing": "pyparsing/",
    "werkzeug": "src/werkzeug/",
    "arrow": "arrow/",
    "marshmallow": "src/marshmallow/",
}
"""Name -> folder of the code."""
EACH, TRIES, SINCE, MOST = 8, 40, "2019-01-01", 15
"""Cases and commits looked at of a repository, from when on, and lines of the code that a commit may change."""
WRONG = 3
"""Tests of a commit that are made wrong, until one fails."""
MENDS = re.compile(r"\b(fix|bug|correct|regress|crash|wrong|should)", re.IGNORECASE)


def tree_of(clone: Path, commit: str) -> dict[str, str]:
    """The Python files of a commit, and what configures its tests."""
    names = [one for one in git(clone, "ls-tree", "-r", "--name-only", commit).splitlines() if _wanted(one)]
    return {name: git(clone, "show", f"{commit}:{name}") for name in names}


def _wanted(name: str) -> bool:
    kinds = (".py", ".toml", ".cfg", ".ini", ".sql", ".txt", ".html")
    return not name.startswith(("docs/", "examples/")) and name.endswith(kinds)


def mended(clone: Path, code: str) -> Iterator[dict[str, Any]]:
    """Commits that mend one file of the code and change tests, the newest first."""
    log = git(clone, "log", "--no-merges", f"--since={SINCE}", "--format=%H %s", "--", code)
    for row in log.splitlines():
        commit, _, subject = row.partition(" ")
        if not MENDS.search(subject):
            continue
        names = _changed_files(clone, commit)
        tests = _changed_tests(names)
        source = [name for kind, name in names if not is_test(name)]
        if not tests or len(source) != 1 or not source[0].startswith(code) or ("M", source[0]) not in names:
            continue
        before, after = (git(clone, "show", f"{one}:{source[0]}") for one in (f"{commit}^", commit))
        lines = changed(after.split("\n"), before.split("\n"))
        if 0 < len(lines) <= MOST:
            job = {"name": commit, "subject": subject, "files": {source[0]: before}, "tests": tests}
            yield job | {"file": source[0], "lines": lines}


def _changed_files(clone: Path, commit: str) -> list[tuple[str, str]]:
    """(kind of change, path) of the Python files that a commit changes."""
    changes = [line.split("\t") for line in git(clone, "diff", "--name-status", f"{commit}^", commit).splitlines()]
    return [(one[0], one[-1]) for one in changes if one[-1].endswith(".py")]


def _changed_tests(names: Iterable[tuple[str, str]]) -> list[str]:
    return [name for kind, name in names if is_test(name) and kind in "AM" and re.search(r"(^|/)test_[^/]*\.py$", name)]


def _path(name: str) -> str:
    return "src" if REPOSITORIES[name].startswith("src/") else "."


def recorded(folder: Path, name: str) -> list[dict[str, Any]]:
    """The jobs of a repository with what was recorded of each: read where it is kept, else run and kept."""
    place, clone = folder / "recorded" / f"history-{name}.json", folder / "histories" / name
    if place.exists():
        return list(json.loads(place.read_text(encoding="utf-8")))
    kept: list[dict[str, Any]] = []
    for tried, job in enumerate(mended(clone, REPOSITORIES[name])):
        if tried == TRIES or len(kept) == EACH:
            break
        sound, broken = boxed(tree_of(clone, job["name"]), [{"files": {}, "tests": job["tests"]}, job], _path(name))
        if sound.get("spectrum", {}).get("passing") and not sound["texts"] and broken.get("failed"):
            kept.append(job | {"row": broken})
        print(name, tried + 1, len(kept), flush=True)
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(kept), encoding="utf-8")
    return kept


def histories(folder: Path) -> list[OutsideCase]:
    """The cases of all repositories that are there."""
    found = []
    for name in REPOSITORIES:
        for job in recorded(folder, name) if (folder / "histories" / name).exists() else ():
            texts = tree_of(folder / "histories" / name, job["name"]) | job["files"]
            case = case_of(name, job["name"], texts, job["row"], file=job["file"], lines=tuple(job["lines"]))
            if case is not None:
                found.append(case)
    return found


def made_wrong(texts: Mapping[str, str], tests: list[str], commit: str) -> Iterator[dict[str, Any]]:
    """Jobs in which one test of a commit expects another value, in a seeded order."""
    rng = generator(0, "diagnose", "histories null", commit)
    found = [
        (path, node)
        for path in tests
        for node in ast.walk(ast.parse(texts[path]))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
    ]
    for at in rng.permutation(len(found)):
        path, node = found[at]
        text = expecting_other(texts[path], node, rng)
        if text is not None:
            yield {"files": {path: text}, "tests": tests}


def nulls(folder: Path, commits: Iterable[str]) -> list[OutsideCase]:
    """Of each commit the first test made wrong that fails, of those that have one; what ran is kept, and read where it is."""
    found = []
    for commit in commits:
        name = next((one for one in REPOSITORIES if _holds(folder / "histories" / one, commit)), None)
        if name is None:
            print(commit[:12], "is in none of the clones", flush=True)
            continue
        clone, place = folder / "histories" / name, folder / "recorded" / f"null-{commit}.json"
        texts = tree_of(clone, commit)
        tries = list(islice(made_wrong(texts, _changed_tests(_changed_files(clone, commit)), commit), WRONG))
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            rows = (boxed(texts, [job], _path(name))[0] for job in tries)
            kept = next(({"at": at, "row": row} for at, row in enumerate(rows) if row.get("failed")), None)
            place.write_text(json.dumps(kept), encoding="utf-8")
            print(name, commit[:12], len(tries), "tries", "failed" if kept else "none failed", flush=True)
        if kept := json.loads(place.read_text(encoding="utf-8")):
            changed_texts = texts | tries[kept["at"]]["files"]
            case = case_of(name, commit, changed_texts, kept["row"], kind="wrong expectation")
            found += [case] if case is not None else []
    return found


def _holds(clone: Path, commit: str) -> bool:
    """Whether a clone is there and holds a commit."""
    try:
        return clone.exists() and git(clone, "cat-file", "-t", commit).strip() == "commit"
    except RamifyError:
        return False


def against(faults: Iterable[Mapping[str, Any]], wrong: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The AUROC of the confidence, faults against wrong tests, where the code is accused."""
    rows = [(one["case"], one["confidence"], True) for one in faults if one["kind"] == "fault" and not one["test"]]
    rows += [(one["case"], one["confidence"], False) for one in wrong if not one["right"]]
    cases, sure, fault = zip(*rows, strict=True)
    told = {"value": auroc(sure, fault), "interval": auroc_interval(sure, fault, cases)}
    return told | {"faults": sum(fault), "wrong tests": len(rows) - sum(fault)}


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--null", action="store_true", help="the null of the cases that the file of --out holds")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.null:
        record = json.loads(args.out.read_text(encoding="utf-8"))
        faults = record["histories"]["cases"]
        found = measured("histories null", nulls(args.folder, [one["case"] for one in faults]))
        record["histories null"] = found | {"faults against wrong tests": against(faults, found["cases"])}
        args.out.write_text(json.dumps(record | {"rows": said(record)}, indent=1) + "\n", encoding="utf-8")
        return
    found = measured("histories", histories(args.folder))
    if args.out:
        record = json.loads(args.out.read_text(encoding="utf-8")) | {"histories": found}
        args.out.write_text(json.dumps(record | {"rows": said(record)}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
