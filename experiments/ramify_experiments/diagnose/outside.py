"""``pytest --ramify-diagnose`` and ``ramify diagnose run`` on faults that nobody here chose, and on failures that are no faults.

    python -m ramify_experiments.diagnose.outside DIR [--fit] [--out repro/diagnose-outside.json]

DIR holds one folder each: ``QuixBugs`` (jkoppel/QuixBugs) and the unpacked source distributions (of toolz, which ships its tests
in it, the wheel) of :data:`PACKAGES`. Their tests run in a sandbox; what they record is kept in DIR/recorded and read again.

**QuixBugs**: 40 programs, each with the fault that its authors put there; the truth is the difference from the correct program.
**Packages**: mutants of :mod:`ramify_experiments.diagnose.mutate` that the tests notice, fifteen a package.
**Null**: failures whose cause lies outside the code: a changed expectation in one test (in QuixBugs in its data, with the correct
programs), and a test that needs a server, a file or a variable that is not there.

``--fit`` prints the weights of :mod:`ramify.methods.diagnose.spectrum`, from the packages marked so alone; nothing of QuixBugs or
of the other packages is looked at.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import ramify
from ramify.base.errors import NeedsError, UserError
from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.methods.diagnose.code import CodeMap
from ramify.methods.diagnose.localizer import Localizer
from ramify.methods.diagnose.snapshot import Snapshot
from ramify.methods.diagnose.spectrum import (
    FailedTest,
    RankWeights,
    Spectrum,
    candidates,
    ranked,
    ranked_lines,
    shares,
)
from ramify.render.text import table
from ramify.sandbox.find import find_sandbox
from ramify.sandbox.protocol import MIB, Limits
from ramify.stats.intervals import clopper_pearson
from ramify.stats.ranking import auroc, auroc_interval
from ramify_experiments.diagnose.mutate import OPERATORS, mutants

EACH, NULLS, TRIES = 15, 10, 90
TOP = (1, 3, 5)
LIMITS = Limits(
    seconds=590,
    memory_bytes=2048 * MIB,
    disk_bytes=128 * MIB,
    files=4000,
    processes=64,
    output_bytes=MIB,
    returned_bytes=12 * MIB,
)
INSIDE = Path(__file__).parent / "inside" / "ran.py"


@dataclass(frozen=True)
class TestedPackage:
    """Where a package's code and tests lie in its distribution; ``tests`` may name the file's stem."""

    code: str
    tests: str
    path: str = "."
    fits: bool = False
    skip: str = "not (Prime or Fourier or oncurrent or orderings or threads or sieve or nth_prime or factor or polynomial)"
    only: str = ".*"


PACKAGES = {
    "inflection": TestedPackage("inflection/", "test_inflection.py", fits=True),
    "toolz": TestedPackage("toolz/", "toolz/tests/test_{stem}.py", fits=True, only="(dict|iter|func)toolz|recipes|utils"),
    "boltons": TestedPackage(
        "boltons/", "tests/test_{stem}.py", only="(dict|iter|str|list|set|func|math|time|format|type|name|stats)utils|cacheutils"
    ),
    "parse": TestedPackage("parse/", "tests"),
}


@dataclass(frozen=True)
class OutsideCase:
    """One failure of known cause: the first failing test, and where its fault is (nothing of a null)."""

    corpus: str
    name: str
    texts: Mapping[str, str]
    test: FailedTest
    spectrum: Spectrum
    issue: str
    file: str = ""
    lines: tuple[int, ...] = ()
    kind: str = "fault"


# -- running tests -------------------------------------------------------------------------------------------------------------


def texts_of(folder: Path, keep: Callable[[str], bool]) -> dict[str, str]:
    """Path -> text of the files of a tree. Raises UserError where there are none."""
    found = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).as_posix()
        if path.is_file() and keep(inside):
            found[inside] = path.read_text(encoding="utf-8", errors="replace")
    if not found:
        raise UserError(
            f"{folder} holds none of the files that are measured: see `python -m ramify_experiments.diagnose.outside -h`"
        )
    return found


def boxed(texts: Mapping[str, str], cases: Sequence[Mapping[str, Any]], path: str) -> list[dict[str, Any]]:
    """What ran.py records of each case in the sandbox; {} of one that did not end."""
    spec = importlib.util.find_spec("pytest")
    if spec is None or spec.origin is None:
        raise NeedsError("tests are run by 'pytest', which is not installed")
    packages, source = Path(spec.origin).parents[1], Path(ramify.__file__).parents[1]
    job = {"path": [path, str(source), str(packages)], "cases": list(cases), "seconds": 90}
    files: dict[str, bytes | str] = {**texts, "ran.py": INSIDE.read_text(encoding="utf-8"), "job.json": json.dumps(job)}
    box = find_sandbox(readable=[str(packages), str(source)])
    done = wait_for(box.run(["python", "ran.py"], files=files, limits=LIMITS, returns=["done.json"]))
    return json.loads(done.files["done.json"]) if "done.json" in done.files else [{}] * len(cases)


def case_of(corpus: str, name: str, texts: Mapping[str, str], row: Mapping[str, Any], **truth: Any) -> OutsideCase | None:
    """A recorded session as a case; None where no test failed."""
    if not row.get("failed"):
        return None
    first, kept = row["failed"][0], row["spectrum"]
    ran = {file: tuple(lines) for file, lines in first["ran"].items()}
    test = FailedTest(**{**first, "ran": ran, "frames": tuple((file, line) for file, line in first["frames"])})
    failed, passed = (
        {file: {int(k): v for k, v in lines.items()} for file, lines in kept[side].items()} for side in ("failed", "passed")
    )
    spectrum = Spectrum(kept["failing"], kept["passing"], failed, passed, frozenset(kept["tests"]))
    return OutsideCase(corpus, name, texts, test, spectrum, row["texts"][test.name], **truth)


# -- QuixBugs ------------------------------------------------------------------------------------------------------------------


def quixbugs(folder: Path) -> list[dict[str, Any]]:
    """The jobs of 40 programs, and of the correct ones with one changed expectation."""
    texts = texts_of(folder, lambda path: path.endswith((".py", ".json")) and "java" not in path)
    rng, jobs = generator(0, "diagnose", "quixbugs"), list[dict[str, Any]]()
    for path in sorted(texts):
        if not (match := re.fullmatch(r"python_testcases/test_(\w+)\.py", path)):
            continue
        name = match[1]
        wrong, right = (texts[f"{side}python_programs/{name}.py"] for side in ("", "correct_"))
        lines = changed(_code(right), _code(wrong))
        jobs.append({"name": name, "files": {}, "tests": [path], "file": f"python_programs/{name}.py", "lines": lines})
        data = f"json_testcases/{name}.json"
        if data in texts:
            rows = [json.loads(line) for line in texts[data].splitlines() if line.strip()]
            at = int(rng.integers(len(rows)))
            rows[at][1] = other(rows[at][1])
            text = "\n".join(json.dumps(one) for one in rows) + "\n"
            jobs.append({"name": name, "files": {data: text}, "tests": ["--correct", path], "kind": "wrong expectation"})
    return jobs


def _code(text: str) -> list[str]:
    """Lines of a program, its docstrings and comments empty."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return [re.sub(r"\s*#.*", "", line).rstrip() for line in lines]


def changed(right: Sequence[str], wrong: Sequence[str]) -> list[int]:
    """The lines of ``wrong`` that differ, empty ones aside; of lines that are missing there, the ones beside them."""
    known = [at for at, line in enumerate(wrong, 1) if line.strip()]
    sides = [line for line in right if line.strip()], [wrong[at - 1] for at in known]
    found: set[int] = set()
    for tag, _, _, first, last in difflib.SequenceMatcher(None, *sides, autojunk=False).get_opcodes():
        if tag == "delete":
            found |= {*known[max(0, first - 1) : first + 1]}
        elif tag != "equal":
            found |= {*known[first:last]}
    return sorted(found)


def other(value: Any) -> Any:
    """A value of the same kind that is not the one expected."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    return [*value, 1] if isinstance(value, list) else 1


# -- mutants and nulls of packages ---------------------------------------------------------------------------------------------


def tests_for(package: TestedPackage, path: str, texts: Mapping[str, str]) -> list[str]:
    """The tests to run for a file of the package."""
    named = package.tests.format(stem=Path(path).stem)
    return [named, "-k", package.skip] if any(one == named or one.startswith(named + "/") for one in texts) else []


def mutant_jobs(name: str, package: TestedPackage, texts: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Mutants in a seeded order, without end."""
    rng = generator(0, "diagnose", "outside", name)
    functions = [
        (path, node)
        for path in sorted(texts)
        if path.startswith(package.code) and "tests/" not in path and re.fullmatch(package.only, Path(path).stem)
        if tests_for(package, path, texts)
        for node in ast.walk(ast.parse(texts[path]))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) > node.lineno + 1
    ]
    while True:
        path, node = functions[int(rng.integers(len(functions)))]
        options = list(mutants(node, OPERATORS[int(rng.integers(len(OPERATORS)))]))
        if not options:
            continue
        fault = options[int(rng.integers(len(options)))]
        written = [_written(texts[path], node, one) for one in (node, fault)]
        lines = changed(*(text.split("\n") for text in written))
        if lines:
            yield {
                "name": f"{path}:{node.name}", "files": {path: written[1]}, "file": path, "lines": lines,
                "tests": tests_for(package, path, texts),
            }  # fmt: skip


def _written(text: str, node: ast.FunctionDef, fault: ast.FunctionDef) -> str:
    """The file with a function written anew: as it is, or with its fault."""
    lines, first = text.split("\n"), min([node.lineno, *(one.lineno for one in node.decorator_list)])
    new = ast.unparse(ast.fix_missing_locations(copy.deepcopy(fault))).split("\n")
    return "\n".join(
        [*lines[: first - 1], *(" " * node.col_offset + one if one else one for one in new), *lines[node.end_lineno :]]
    )


MISSING = {
    "server": "import socket\nsocket.create_connection(('127.0.0.1', 9), 1)",
    "file": "open('/nowhere/data.json').read()",
    "variable": "import os\nos.environ['SERVICE_TOKEN_THAT_IS_NOT_SET']",
    "answer": "raise ConnectionError('the server does not answer')",
}


def null_jobs(name: str, package: TestedPackage, texts: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Tests with a wrong expectation, and tests that need what is not there, by turns; without end."""
    rng = generator(0, "diagnose", "null", name)
    known = {
        path: [tests_for(package, one, texts) for one in sorted(texts) if one.startswith(package.code) and "tests/" not in one]
        for path in sorted(texts)
        if re.search(r"(^|/)test_[^/]*\.py$", path)
    }
    found = [
        (path, node)
        for path, runs in known.items()
        if any(run and (run[0] == path or path.startswith(run[0] + "/")) for run in runs)
        for node in ast.walk(ast.parse(texts[path]))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
    ]
    if package.only != ".*":
        found = [one for one in found if re.fullmatch(package.only, Path(one[0]).stem.removeprefix("test_"))]
    for at in range(10_000):
        path, node = found[int(rng.integers(len(found)))]
        if at % 2:
            text, kind = expecting_other(texts[path], node, rng), "wrong expectation"
            if text is None:
                continue
        else:
            fault = copy.deepcopy(node)
            kind = list(MISSING)[int(rng.integers(len(MISSING)))]
            where = int(rng.integers(len(fault.body) + 1))
            fault.body[where:where] = ast.parse(MISSING[kind]).body
            text, kind = _written(texts[path], node, fault), f"missing {kind}"
        yield {"name": f"{path}:{node.name}", "files": {path: text}, "tests": [path, "-k", package.skip], "kind": kind}


def expecting_other(text: str, test: ast.FunctionDef, rng: np.random.Generator) -> str | None:
    """A file with a test of it that expects another value somewhere; None where the test compares with no constant."""
    fault = copy.deepcopy(test)
    spots = [one for one in ast.walk(fault) if isinstance(one, ast.Constant) and _expected(fault, one)]
    if not spots:
        return None
    spot = spots[int(rng.integers(len(spots)))]
    spot.value = other(spot.value)
    return _written(text, test, fault)


def _expected(test: ast.FunctionDef, constant: ast.Constant) -> bool:
    """Whether a constant is what an assertion compares with: right of an equality, or the last argument of assertEqual."""
    if type(constant.value) not in (int, float, str):
        return False
    wanted = [
        node.test.comparators[-1]
        for node in ast.walk(test)
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.Eq)
    ]
    wanted += [
        node.args[-1]
        for node in ast.walk(test)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "assertEqual" and node.args
    ]
    return any(one is constant for one in wanted)


def recorded(folder: Path, name: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The texts of a corpus, and its jobs with what was recorded of each: read where it is kept, else run and kept."""
    place = folder / "recorded" / f"{name}.json"
    if name == "QuixBugs":
        texts, path = texts_of(folder / name, lambda one: one.endswith((".py", ".json")) and "java" not in one), "."
    else:
        texts, path = texts_of(folder / name, lambda one: one.endswith((".py", ".toml", ".cfg"))), PACKAGES[name].path
    if place.exists():
        return texts, json.loads(place.read_text(encoding="utf-8"))
    kept: list[dict[str, Any]] = []
    if name == "QuixBugs":
        jobs = quixbugs(folder / name)
        for at in range(0, len(jobs), 8):
            kept += [
                job | {"row": row} for job, row in zip(jobs[at : at + 8], boxed(texts, jobs[at : at + 8], path), strict=True)
            ]
            print(name, len(kept), flush=True)
    else:
        package = PACKAGES[name]
        kept += taken(texts, path, mutant_jobs(name, package, texts), EACH, name)
        kept += taken(texts, path, null_jobs(name, package, texts), NULLS, name)
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(kept), encoding="utf-8")
    return texts, kept


def taken(texts: Mapping[str, str], path: str, jobs: Iterator[dict[str, Any]], count: int, name: str) -> list[dict[str, Any]]:
    """The first ``count`` jobs that make a test fail which did not fail before."""
    kept: list[dict[str, Any]] = []
    before: dict[str, set[str]] = {}
    seen: set[str] = set()
    for _ in range(TRIES // 6):
        batch: list[dict[str, Any]] = []
        while len(batch) < 6:
            job = next(jobs)
            if json.dumps(job["files"]) not in seen:
                seen.add(json.dumps(job["files"]))
                batch.append(job)
        fresh = [
            one for one in {json.dumps(job["tests"]): job["tests"] for job in batch}.values() if json.dumps(one) not in before
        ]
        rows = boxed(texts, [*({"files": {}, "tests": one} for one in fresh), *batch], path)
        for one, row in zip(fresh, rows, strict=False):
            before[json.dumps(one)] = set(row.get("texts", {"": ""}))
        for job, row in zip(batch, rows[len(fresh) :], strict=True):
            if row.get("failed") and not before[json.dumps(job["tests"])] and len(kept) < count:
                kept.append(job | {"row": row})
        print(name, len(kept), flush=True)
        if len(kept) == count:
            break
    return kept


def cases(folder: Path, name: str) -> list[OutsideCase]:
    """The cases of a corpus."""
    texts, rows = recorded(folder, name)
    found = []
    for job in rows:
        truth = {"file": job.get("file", ""), "lines": tuple(job.get("lines", ())), "kind": job.get("kind", "fault")}
        case = case_of(name, job["name"], {**texts, **job["files"]}, job["row"], **truth)
        if case is not None:
            found.append(case)
    return found


# -- fitting -------------------------------------------------------------------------------------------------------------------


def fitted(known: Sequence[OutsideCase], penalty: float = 0.5) -> RankWeights:
    """RankWeights that make the true places of ``known`` likely, with a penalty on their distance from those set by hand.

    Those of lines stay as they are: which lines a mutant changes says what the operators of the mutants are.
    """
    base, choices = RankWeights.by_hand(), list[tuple[np.ndarray, np.ndarray]]()
    width = len(base.functions)
    for case in known:
        found = candidates(case.test, case.spectrum, CodeMap(Snapshot(case.texts)), by_source(case).places)
        right = np.array([one.outside if case.kind != "fault" else _holds(case, one.file, one.start, one.end) for one in found])
        if right.any():
            rows = np.zeros((len(found), width + len(base.outside)))
            for at, one in enumerate(found):
                rows[at, slice(width, None) if one.outside else slice(width)] = one.row
            choices.append((rows, right))
    both = _logit(choices, penalty, np.array([*base.functions, *base.outside]))
    functions, outside = (tuple(round(float(w), 2) for w in part) for part in (both[:width], both[width:]))
    return replace(base, functions=functions, outside=outside)


def _logit(known: Sequence[tuple[np.ndarray, np.ndarray]], penalty: float, prior: np.ndarray) -> np.ndarray:
    """Conditional logit by gradient ascent: in every choice (rows, right) the right rows shall have the share of one."""
    scale = np.sqrt(np.mean(np.concatenate([rows for rows, _ in known]) ** 2, axis=0)) + 1e-9
    weight = start = prior * scale
    for step in range(3000):
        slope = penalty * (start - weight)
        for rows, right in known:
            share = _softmax(rows / scale @ weight)
            slope += (share * right / (share @ right) - share) @ (rows / scale)
        weight = weight + 2.0 / (1 + step / 300) * slope / len(known)
    out: np.ndarray = weight / scale
    return out


def _softmax(score: np.ndarray) -> np.ndarray:
    share = np.exp(score - score.max())
    out: np.ndarray = share / share.sum()
    return out


def _holds(case: OutsideCase, file: str, start: int, end: int) -> bool:
    return file == case.file and any(start <= line <= end for line in case.lines)


# -- measuring -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankedPlaces:
    """What an arm says of a case: functions (file, first, last) and lines (file, line), best first; its confidence."""

    places: tuple[tuple[str, int, int], ...]
    lines: tuple[tuple[str, int], ...] = ()
    confidence: float | None = None


def by_tests(case: OutsideCase, weights: RankWeights) -> RankedPlaces:
    """What ``pytest --ramify-diagnose`` says."""
    snapshot = Snapshot(case.texts)
    found = candidates(case.test, case.spectrum, CodeMap(snapshot), by_source(case).places)
    share = shares(found, weights)
    order = ranked(found, share)[:5]
    best = [found[at] for at in order]
    lines = [(one.file, line) for one in best for line in ranked_lines(one, case.test, case.spectrum, snapshot, weights)[:5]]
    return RankedPlaces(tuple((one.file, one.start, one.end) for one in best), tuple(lines), float(share[order[0]]))


def by_formula(case: OutsideCase, formula: str) -> RankedPlaces:
    """Ochiai's or DStar's suspicion alone, ties in the order of files and lines, as the tools have it."""
    code, spectrum = CodeMap(Snapshot(case.texts)), case.spectrum

    def score(file: str, line: int) -> float:
        if formula == "Ochiai":
            return spectrum.ochiai(file, line)
        ef, ep = spectrum.failed[file].get(line, 0), spectrum.passed.get(file, {}).get(line, 0)
        missed = ep + spectrum.failing - ef
        return ef * ef / missed if missed else float("inf")

    ran = [
        (file, line)
        for file, lines in case.test.ran.items()
        for line in lines
        if file in case.texts and not spectrum.is_test(file)
    ]
    ran.sort(key=lambda one: (-score(*one), one))
    places = [(file, symbol.start, symbol.end) for file, line in ran if (symbol := code.symbol(file, line, line)) is not None]
    return RankedPlaces(tuple(dict.fromkeys(places)), tuple(ran), score(*ran[0]) if ran and formula == "Ochiai" else None)


def by_frame(case: OutsideCase) -> RankedPlaces:
    """The last frame of the traceback that is not in a test, else the test."""
    inside = [one for one in case.test.frames if one[0] in case.texts and not case.spectrum.is_test(one[0])]
    file, line = inside[-1] if inside else (case.test.file, case.test.line)
    symbol = CodeMap(Snapshot(case.texts)).symbol(file, line, line)
    return RankedPlaces(((file, symbol.start, symbol.end) if symbol else (file, line, line),), ((file, line),))


def by_source(case: OutsideCase) -> RankedPlaces:
    """What ``ramify diagnose run`` says of the failure's text."""
    key = case.corpus, case.name, case.kind, case.issue
    if key not in _LOOKED:
        _LOOKED[key] = RankedPlaces(tuple(Localizer().run(Snapshot(case.texts), case.issue).locations))
    return _LOOKED[key]


_LOOKED: dict[tuple[str, ...], RankedPlaces] = {}


TESTS, FRAME, SOURCE = "pytest --ramify-diagnose", "last frame in the code", "diagnose run, text of the failure"
ARMS: Mapping[str, Callable[[OutsideCase], RankedPlaces]] = {
    TESTS: lambda case: by_tests(case, RankWeights()),
    "Ochiai alone": lambda case: by_formula(case, "Ochiai"),
    "DStar alone": lambda case: by_formula(case, "DStar"),
    FRAME: by_frame,
    SOURCE: by_source,
}


def judged(case: OutsideCase, answer: RankedPlaces) -> dict[str, Any]:
    """Whether an answer is right: file, function and line among the first; of a null, whether it names the test."""
    first = answer.places[:1]
    row: dict[str, Any] = {"case": case.name, "kind": case.kind, "confidence": answer.confidence}
    if case.kind != "fault":
        row["right"] = all(case.spectrum.is_test(file) for file, _, _ in first)
        return row
    row["file"] = any(file == case.file for file, _, _ in first)
    row["test"] = any(case.spectrum.is_test(file) for file, _, _ in first)
    row["function"] = [any(_holds(case, *place) for place in answer.places[:top]) for top in TOP]
    row["line"] = [any(file == case.file and line in case.lines for file, line in answer.lines[:top]) for top in TOP]
    row["right"] = row["function"][0]
    return row


def share_of(hits: Sequence[bool]) -> dict[str, Any]:
    """Hits of n, with a 95 % interval."""
    return {"hits": sum(hits), "n": len(hits), "interval": clopper_pearson(sum(hits), len(hits)) if hits else None}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Shares with 95 % intervals, and the AUROC of the confidence."""
    faults, nulls = ([row for row in rows if (row["kind"] == "fault") == side] for side in (True, False))

    out = {"file": share_of([row["file"] for row in faults]), "names a test": share_of([row["test"] for row in faults])}
    for what in ("function", "line"):
        out |= {f"{what} in {top}": share_of([row[what][at] for row in faults]) for at, top in enumerate(TOP)}
    out["null: accuses code"] = share_of([not row["right"] for row in nulls])
    sure = [row for row in rows if row["confidence"] is not None]
    if sure:
        known = [row["confidence"] for row in sure], [row["right"] for row in sure]
        out["AUROC"] = {"value": auroc(*known), "interval": auroc_interval(*known, [row["case"] + row["kind"] for row in sure])}
        out["confidence"] = {
            str(side): float(np.mean([row["confidence"] for row in sure if row["right"] is side]))
            for side in (True, False)
            if any(row["right"] is side for row in sure)
        }
    return out


def said(record: Mapping[str, Any]) -> list[list[str]]:
    """Rows of docs/claims.md: what was tried, and what was found beside the strongest simple baseline."""
    rows = []
    for group, what in {
        "QuixBugs": "faults of QuixBugs",
        "packages": "mutants of two packages that it was not fitted on",
        "histories": "faults that the maintainers of nine packages mended (commits since 2019)",
    }.items():
        if group not in record:
            continue
        own, base, frame, source = (record[group][arm] for arm in (TESTS, "Ochiai alone", FRAME, SOURCE))
        tried = f"The file, function and line of {own['file']['n']} {what}, from their failing tests"
        found = [
            f"{metric}: {_share(own[metric])}, by Ochiai alone {_share(base[metric])}"
            for metric in ("file", "function in 1", "line in 1", "line in 5", "null: accuses code")
            if own[metric]["n"]
        ]
        file = f"file from the failure's text: {_share(source['file'])}, by the last frame in the code {_share(frame['file'])}"
        low, high = own["AUROC"]["interval"]
        rows.append(
            [tried, "; ".join([*found, file, f"AUROC of the confidence: {own['AUROC']['value']:.2f} [{low:.2f}, {high:.2f}]"])]
        )
    if null := record.get("histories null"):
        own, base, frame = (null[arm]["null: accuses code"] for arm in (TESTS, "Ochiai alone", FRAME))
        both = null["faults against wrong tests"]
        low, high = both["interval"]
        rows.append(
            [
                f"The code is accused where the failing test is wrong ({own['n']} of these commits, an expected value changed)",
                f"{_share(own)}, by Ochiai alone {_share(base)}, by the last frame in the code {_share(frame)}; AUROC of the "
                f"confidence where it accuses code, {both['faults']} faults against {both['wrong tests']} wrong tests: "
                f"{both['value']:.2f} [{low:.2f}, {high:.2f}]",
            ]
        )
    return rows


def _share(one: Mapping[str, Any]) -> str:
    low, high = one["interval"]
    return f"{one['hits']} of {one['n']} [{low:.2f}, {high:.2f}]"


def measured(group: str, known: Sequence[OutsideCase]) -> dict[str, Any]:
    """What each arm says of the cases, shown and as it is kept."""
    rows = {arm: [judged(case, answer(case)) for case in known] for arm, answer in ARMS.items()}
    found: dict[str, Any] = {arm: summary(one) for arm, one in rows.items()}
    head = [name for name in found["Ochiai alone"] if name not in ("AUROC", "confidence")]
    shown = [[arm, *(f"{one[name]['hits']}/{one[name]['n']}" for name in head), f"{(one.get('AUROC') or {}).get('value')}"]
             for arm, one in found.items()]  # fmt: skip
    print(group, table(["", *head, "AUROC"], shown), sep="\n", flush=True)
    return found | {"cases": rows[TESTS]}


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fit", action="store_true", help="print weights, fitted on the packages for it")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.fit:
        print(fitted([case for name, package in PACKAGES.items() if package.fits for case in cases(args.folder, name)]))
        return
    groups = {"QuixBugs": ["QuixBugs"], "packages": [name for name, package in PACKAGES.items() if not package.fits]}
    groups["packages that it was fitted on"] = [name for name, package in PACKAGES.items() if package.fits]
    record: dict[str, Any] = json.loads(args.out.read_text(encoding="utf-8")) if args.out and args.out.exists() else {}
    for group, names in groups.items():
        known = [case for name in names for case in cases(args.folder, name)]
        record[group] = measured(group, known)
    record["rows"] = said(record)
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
