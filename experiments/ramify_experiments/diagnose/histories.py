"""Faults that maintainers mended: commits of public repositories that change one file of the code and its tests.

    python -m ramify_experiments.diagnose.histories DIR [--out repro/diagnose-outside.json]

DIR/histories holds clones of :data:`REPOSITORIES` by these names. A case is a commit whose tests pass, and fail once the one file
of the code is as it was before; the truth is what the commit changed. The newest come first, so which there are depends on the
clones. They are measured as those of :mod:`ramify_experiments.diagnose.outside`, into whose record this writes.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramify.integrations.harnesses.worktrees import git
from ramify.methods.diagnose.code import is_test
from ramify_experiments.diagnose.outside import OutsideCase, boxed, case_of, changed, measured, said

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
        changes = [line.split("\t") for line in git(clone, "diff", "--name-status", f"{commit}^", commit).splitlines()]
        names = [(one[0], one[-1]) for one in changes if one[-1].endswith(".py")]
        tests = [name for kind, name in names if is_test(name) and kind in "AM" and re.search(r"(^|/)test_[^/]*\.py$", name)]
        source = [name for kind, name in names if not is_test(name)]
        if not tests or len(source) != 1 or not source[0].startswith(code) or ("M", source[0]) not in names:
            continue
        before, after = (git(clone, "show", f"{one}:{source[0]}") for one in (f"{commit}^", commit))
        lines = changed(after.split("\n"), before.split("\n"))
        if 0 < len(lines) <= MOST:
            job = {"name": commit, "subject": subject, "files": {source[0]: before}, "tests": tests}
            yield job | {"file": source[0], "lines": lines}


def recorded(folder: Path, name: str) -> list[dict[str, Any]]:
    """The jobs of a repository with what was recorded of each: read where it is kept, else run and kept."""
    place, clone = folder / "recorded" / f"history-{name}.json", folder / "histories" / name
    if place.exists():
        return list(json.loads(place.read_text(encoding="utf-8")))
    kept: list[dict[str, Any]] = []
    for tried, job in enumerate(mended(clone, REPOSITORIES[name])):
        if tried == TRIES or len(kept) == EACH:
            break
        path = "src" if REPOSITORIES[name].startswith("src/") else "."
        sound, broken = boxed(tree_of(clone, job["name"]), [{"files": {}, "tests": job["tests"]}, job], path)
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


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = measured("histories", histories(args.folder))
    if args.out:
        record = json.loads(args.out.read_text(encoding="utf-8")) | {"histories": found}
        args.out.write_text(json.dumps(record | {"rows": said(record)}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
