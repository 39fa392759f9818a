"""Sixty mutants of three published packages whose source distributions bring their tests (section 7,
corpus ii): localizers on real code.

``python -m ramify_experiments.diagnose.packages`` prints the table; cells are kept, so it continues where it stopped. The
distributions are taken from the package index once, by pip, at fixed versions; without an index the part is not measured. Mutants
run in a sandbox with the packages' own tests.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from ramify.base.errors import NeedsError
from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.methods.diagnose.algorithm import LocalizeConfig, scores
from ramify.methods.diagnose.code import CodeMap, words
from ramify.methods.diagnose.loop import played
from ramify.methods.diagnose.policy import RulePolicy, Weights
from ramify.methods.diagnose.snapshot import Snapshot
from ramify.methods.diagnose.tools import RepoTools
from ramify.render.text import table
from ramify.sandbox.find import find_sandbox
from ramify.sandbox.protocol import MIB, Limits
from ramify_experiments.diagnose.corpus import instances
from ramify_experiments.diagnose.measure import rank_bm25
from ramify_experiments.diagnose.mutate import OPERATORS, mutants
from ramify_experiments.diagnose.ranker import labelled, train
from ramify_experiments.lab import ResultCache, cache

PACKAGES = {
    "more-itertools": ("11.2.1", "more_itertools", "tests"),
    "toolz": ("1.2.0", "toolz", "toolz"),
    "boltons": ("26.2.0", "boltons", "tests"),
}
"""Name -> version, folder of the package, folder of its tests.
That of sortedcontainers, which section 7 names too, ships no tests."""
EACH = 20
SLOW = ("stress", "benchmark", "test_tbutils", "test_debugutils", "test_ioutils", "test_socketutils", "test_fileutils")
"""Tests left out: long ones, and those that need more than a package's own code."""
LIMITS = Limits(
    seconds=240,
    memory_bytes=1024 * MIB,
    disk_bytes=128 * MIB,
    files=4000,
    processes=64,
    output_bytes=MIB,
    returned_bytes=12 * MIB,
)
WATCH = Path(__file__).parent / "inside" / "watch.py"


def source(name: str) -> dict[str, str]:
    """Path -> text of a package's source distribution, its own folder and its tests. Raises NeedsError where it cannot be had."""
    version, package, tests = PACKAGES[name]
    folder = cache() / "sdists"
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted(folder.glob(f"{package}*-{version}.tar.gz")) or sorted(folder.glob(f"{name}*-{version}.tar.gz"))
    if not found:
        argv = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            ":all:",
            "-d",
            str(folder),
            f"{name}=={version}",
        ]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        found = sorted(folder.glob(f"*-{version}.tar.gz"))
        found = [one for one in found if one.name.replace("-", "_").startswith(name.replace("-", "_"))]
        if not found:
            raise NeedsError(
                f"mutants of {name} need its source distribution from a package index: "
                f"{(done.stderr.strip().splitlines() or ['none came'])[-1]}"
            )
    texts = {}
    with tarfile.open(found[0]) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            inside = str(PurePosixPath(*path.parts[1:])) if len(path.parts) > 1 else ""
            file = (
                archive.extractfile(member)
                if member.isfile() and inside.split("/")[0] in (package, tests) and inside.endswith(".py")
                else None
            )
            if file is not None:
                texts[inside] = file.read().decode("utf-8", "replace")
    return texts


def boxed(texts: dict[str, str], job: dict[str, Any]) -> Any:
    """What watch.py makes of a job in the sandbox."""
    files: dict[str, bytes | str] = {**texts, "watch.py": WATCH.read_text(encoding="utf-8"), "job.json": json.dumps(job)}
    spec = importlib.util.find_spec("pytest")
    if spec is None or spec.origin is None:
        raise NeedsError("mutants of packages are run by 'pytest', which is not installed")
    done = wait_for(
        find_sandbox(readable=[str(Path(spec.origin).parents[1])]).run(
            ["python", "watch.py"], files=files, limits=LIMITS, returns=["done.json"]
        )
    )
    return json.loads(done.files["done.json"]) if "done.json" in done.files else None


def made(name: str, seed: int) -> list[dict[str, Any]]:
    """Up to twenty mutants of a package that its tests notice: issue, truth, and what simple baselines say."""
    texts, (_, package, tests) = source(name), PACKAGES[name]
    chosen = sorted(
        path
        for path in texts
        if path.startswith(tests + "/") and PurePosixPath(path).name.startswith("test_") and not any(s in path for s in SLOW)
    )
    whole = boxed(texts, {"one": True, "tests": chosen, "package": package + "/", "profile": True}) or {}
    passed = {test: row for test, row in whole.items() if row["passed"]}
    called: dict[str, list[str]] = {}
    for test, row in passed.items():
        for location in row["called"]:
            called.setdefault(location, []).append(test)
    functions = [
        one
        for path in sorted(texts)
        if path.startswith(package + "/") and "/tests/" not in path
        for one in _functions(path, texts[path])
        if called.get(one[0])
    ]
    rng, out, tried = generator(seed, "packages", name), list[dict[str, Any]](), 0
    while len(out) < EACH and tried < 160:
        batch: list[dict[str, Any]] = []
        while len(batch) < 10 and tried < 160:
            tried += 1
            location, path, node = functions[int(rng.integers(len(functions)))]
            operator = OPERATORS[int(rng.integers(len(OPERATORS)))]
            options = list(mutants(node, operator))
            if not options:
                continue
            fault = options[int(rng.integers(len(options)))]
            text, last = _with(texts[path], node, fault)
            quick = sorted(called[location], key=lambda test: passed[test]["seconds"])[:25]
            batch.append(
                {
                    "path": path,
                    "text": text,
                    "tests": quick,
                    "place": location,
                    "operator": operator,
                    "span": (path, _first(node), last),
                    "name": node.name,
                }
            )
        results = boxed(texts, {"mutants": batch, "package": package + "/", "seconds": 20}) or [{}] * len(batch)
        for mutant, result in zip(batch, results, strict=True):
            failing = [test for test, row in result.items() if not row["passed"] and row.get("frames")]
            if failing and len(out) < EACH and all(mutant["span"] != one["span"] for one in out):
                out.append(mutant | _issue(result, failing, called, package))
    return out


def _functions(path: str, text: str) -> list[tuple[str, str, ast.FunctionDef]]:
    return [
        (f"{path}:{_first(node)}", path, node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) > node.lineno + 1
    ]


def _first(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _with(text: str, node: ast.FunctionDef, fault: ast.FunctionDef) -> tuple[str, int]:
    """The file with the fault in the place of a function, and the function's last line then; every other line stays as it is."""
    lines, first = text.split("\n"), _first(node)
    written = ast.unparse(ast.fix_missing_locations(fault)).split("\n")
    written = [" " * node.col_offset + line if line else line for line in written]
    return "\n".join([*lines[: first - 1], *written, *lines[node.end_lineno or first :]]), first + len(written) - 1


def _issue(result: dict[str, Any], failing: list[str], called: dict[str, list[str]], package: str) -> dict[str, Any]:
    row = result[failing[0]]
    frames = [tuple(one) for one in row["frames"]]
    statement = next(
        (text for path, _, _, text in frames if not path.startswith(package + "/") or "/tests/" in path), frames[0][3]
    )
    text = (
        f"Wrong result of {' '.join(statement.split())[:80]}\n\n```\n{statement[:600]}\n```\nfails with {row['error']}: "
        f"{row['message'].splitlines()[0] if row['message'] else ''}\n"
    )
    trace = "".join(f'  File "{path}", line {line}, in {name}\n' for path, line, name, _ in frames)
    own = [(path, line) for path, line, _, _ in frames if path.startswith(package + "/") and "/tests/" not in path]
    bad = {test for test in result if not result[test]["passed"]}
    score = {}
    for location, tests in called.items():
        hit = len(bad & set(tests))
        score[location] = hit / (len(bad) * len(tests)) ** 0.5 if bad else 0.0
    best = max(sorted(score), key=lambda location: score[location])
    path, _, line = best.rpartition(":")
    return {
        "issue": text,
        "traced": f"{text}\nTraceback (most recent call last):\n{trace}",
        "frame": own[-1] if own else None,
        "ochiai": (path, int(line)),
    }


def mutated(name: str, seed: int, training: int) -> dict[str, list[list[float]]]:
    """Every localizer and baseline on the mutants of a package: hit of the file, and of the function."""
    weights = train(labelled(instances(seed, "train", training)))
    out: dict[str, list[list[float]]] = {}
    texts = source(name)
    for row in made(name, seed):
        for arm, hit in _hits(name, texts, row, weights).items():
            out.setdefault(arm, []).append(hit)
    return out


def _hits(name: str, texts: dict[str, str], row: dict[str, Any], weights: Weights) -> dict[str, list[float]]:
    snapshot = Snapshot({**texts, row["path"]: row["text"]}, name)
    gold, config = tuple(row["span"]), LocalizeConfig()
    word = config.model_copy(update={"without": ("view_file", "connected_tree", "repo_tree")})
    code = CodeMap(snapshot)
    held = {
        (path, s.start, s.end): "\n".join(snapshot.lines(path)[s.start - 1 : s.end])
        for path in snapshot.paths
        if not ("/tests/" in path or path.startswith("tests/"))
        for s in code.facts(path).symbols
        if s.kind != "class"
    }
    keys = {str(key): key for key in held}
    best = keys[rank_bm25({key: words(held[span]) for key, span in keys.items()}, words(row["issue"]))]

    def around(spot: Any) -> list[tuple[str, int, int]]:
        found = code.symbol(spot[0], spot[1], spot[1]) if spot else None
        return [(spot[0], found.start, found.end)] if found is not None else [(spot[0], spot[1], spot[1])] if spot else []

    arms: dict[str, list[tuple[str, int, int]]] = {
        "BM25": [best],
        "traceback, last frame": around(row["frame"]),
        "Ochiai": around(row["ochiai"]),
    }
    for arm, policy, issue, settings in (
        ("L0", RulePolicy(), "issue", word), ("L1", RulePolicy(), "issue", config),
        ("L2", RulePolicy(replace(weights, certain=0.9)), "issue", config),
        ("L1 with the traceback", RulePolicy(), "traced", config),
    ):  # fmt: skip
        arms[arm] = played(RepoTools(snapshot, settings.without), row[issue], policy, settings)[0].locations
    found = {arm: scores(spans[:1], [gold]) for arm, spans in arms.items()}
    return {arm: [float(one["hit@1"] or 0), float(_overlaps(arms[arm][:1], gold))] for arm, one in found.items()}


def _overlaps(spans: list[tuple[str, int, int]], gold: Any) -> bool:
    """Whether the function that is named is the faulty one: the same file, and its first line within the other's span."""
    return any(
        path == gold[0] and first <= gold[2] and gold[1] <= last and (last - first) <= 2 * (gold[2] - gold[1]) + 4
        for path, first, last in spans
    )


def main() -> None:
    """Print how often each localizer's first place is right."""
    cells = ResultCache(cache() / "repro" / "diagnose-packages")
    done = cells.map(mutated, {f"mutants of {name}": {"name": name, "seed": 0, "training": 100} for name in PACKAGES})
    rows = []
    for arm in next(iter(done.values())):
        hits = [hit for one in done.values() for hit in one[arm]]
        rows.append([arm, len(hits), *(f"{sum(hit[at] for hit in hits) / len(hits):.3f}" for at in (0, 1))])
    print(table(["localizer", "mutants", "file", "function"], rows))


if __name__ == "__main__":
    main()
