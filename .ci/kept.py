"""Units of work whose last result is kept in kept.json, with a hash of all that they reach: what `.ci/run` may leave out.

A unit is a quick reproduction, the null and planted cases of a method, a file of slow tests, a file of tests under other matrix
kernels, or a script beside this one. Its files are found without running it, and rather too many than too few: what it reaches by
imports (ramify_experiments.code), what its test names, and all of ramify where it starts programs. Needs Python alone.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".ci" / "kept.json"
TESTS, SOURCES, EXPERIMENTS = ROOT / "tests", ROOT / "src" / "ramify", ROOT / "experiments" / "ramify_experiments"
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "experiments")]

from ramify_experiments import code  # noqa: E402

BUDGET = 800
"""Seconds, of all units together, that are spent on what has changed: two lanes of less than seven minutes."""
UNKNOWN = 60
"""Seconds that a unit counts as which has not passed yet."""

KERNELS = (
    ("MKL_CBWR=COMPATIBLE",),
    ("MKL_CBWR=AVX2", "ATEN_CPU_CAPABILITY=default"),
    ("MKL_CBWR=AUTO", "ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=AVX2"),
)
"""Other matrix kernels of this processor, which torch chooses when it is loaded: what a run would meet elsewhere."""
UNDER_KERNELS = (
    "tests/engine/test_determinism.py", "tests/engine/test_ragged.py", "tests/engine/test_load.py",
    "tests/engine/test_speculate.py", "tests/methods/dspark/test_lossless.py", "tests/rollout/test_fork.py",
    "tests/rollout/test_backends.py",
)  # fmt: skip
"""Tests of the engine's promise that a draw does not depend on its batch."""

PYTEST = (".venv/bin/python", "-m", "pytest", "-ra", "--timeout", "400")  # in two lanes, tests that load torch take their time
VERB = (
    *(f"src/ramify/cli/{name}.py" for name in ("__init__", "main", "methods", "repro", "check", "experiments")),
    *(f"src/ramify/{name}.py" for name in ("kit", "render/__init__", "render/terminal")),
    *(f"experiments/ramify_experiments/{name}.py" for name in ("verbs", "cases", "lab", "code")),
)
"""What `ramify repro` and `ramify check method` themselves load. (It also reads the first line of each method, for its help.)"""
STARTS = re.compile(
    r"subprocess|multiprocessing|ramify\.cli|sys\.executable|import_module|runpy|pytester|Popen|\bpty\b|\bfork|os\.(exec|spawn|fork)"
)
"""What a test says that runs programs, which may be any of ramify's."""


@dataclass(frozen=True)
class Unit:
    """One thing that runs or does not: of one ``kind``, by one ``command``, decided by ``files``."""

    kind: str
    name: str
    command: tuple[str, ...]
    files: frozenset[Path]

    @cached_property
    def hash(self) -> str:
        """Equal for equal files, command, minor version of Python, packages asked for and options of pytest."""
        whole = hashlib.sha256()
        files = sorted((str(file.relative_to(ROOT)), _digest(file)) for file in self.files)
        for part in (sys.version_info[:2], _packages(), self.command, *files):
            whole.update(f"{part}\n".encode())
        return whole.hexdigest()[:16]


@cache
def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@cache
def _packages() -> str:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [whole["project"][key] for key in ("dependencies", "optional-dependencies")]
    return json.dumps([*wanted, whole["tool"]["pytest"], (ROOT / "constraints.txt").read_text(encoding="utf-8")])


# -- what is reached -----------------------------------------------------------------------------------------------------------


def below(*names: str) -> set[Path]:
    """Every file in the folders ``names`` of the tree, or of that name."""
    return {file for name in names for file in _below(name)}


@cache
def _below(name: str) -> list[Path]:
    place = ROOT / name
    found = [file for file in (place.rglob("*") if place.is_dir() else [place]) if file.is_file()]
    return [file for file in found if "__pycache__" not in file.parts]


def reached(modules: Iterable[str]) -> set[str]:
    """The modules of ramify and of its experiments that ``modules`` reach by imports."""
    return code.reached(tuple(modules), frozenset(code.OWN))


def imported(modules: Iterable[str]) -> set[Path]:
    """Files of the modules that ``modules`` reach, and of experiments also what they read elsewhere in the tree."""
    return {file for name in reached(modules) for file in _of_module(name)}


@cache
def _of_module(name: str) -> set[Path]:
    found = set(code.files(name))
    return found | {other for file in found if EXPERIMENTS in file.parents for other in named(_text(file))}


def named(text: str) -> set[Path]:
    """What a program reads in the tree, packages and tests apart: where it knows its own place, all that it has in quotes."""
    if "__file__" not in text:
        return set()
    tops = [
        file.name for file in ROOT.iterdir() if not file.name.startswith(".") and file.name not in ("src", "experiments", "tests")
    ]
    return below(*(top for top in tops if re.search(rf"[\"']{re.escape(top)}[\"'/]", text)))


def of_method(slug: str) -> list[str]:
    """Modules of a method, and those of the command line: what its verbs load by name."""
    package = slug.replace("-", "_")
    folders = {"ramify.cli": SOURCES / "cli", f"ramify.methods.{package}": SOURCES / "methods" / package}
    return [f"{name}.{file.stem}" for name, folder in folders.items() for file in sorted(folder.glob("*.py"))]


def tested(test: Path) -> set[Path]:
    """What the tests in a file reach: helpers, data, what they import, and where they start programs all that those may load."""
    shared = [file for folder in test.parents if (file := folder / "conftest.py").is_file() and TESTS in folder.parents]
    own = {test, *shared}
    todo = list(own)
    while todo:
        for helper in _used(todo.pop()) & _helpers().keys():
            todo += _helpers()[helper] - own
            own |= _helpers()[helper]
    text = "".join(map(_text, sorted(own)))
    modules = {name for file in own for name in _imports(file)}
    folders = {file.parent for file in own} - {TESTS}
    found = own | {data for data in _data() if folders & {data.parent, data.parent.parent}}
    loaded = ("__init__.py", "pytest/__init__.py", "pytest/plugin.py")  # by every pytest
    found |= below("tests/conftest.py", "tests/forked.py", *(f"src/ramify/integrations/{name}" for name in loaded))
    found |= imported(modules) | named(text)
    if "fixtures" in text:
        found |= below("tests/fixtures")
    if STARTS.search(text) or "ramify.cli.main" in reached(modules) or found & below("docs", "examples"):
        found |= _started(test, bool(re.search(r"ramify_experiments|\b(repro|check)\b", text)))
    return found


def _started(test: Path, experiments: bool) -> set[Path]:
    """What programs may load that a test starts: one of a method's tests those of its own method and the kernel, another all."""
    parts = test.relative_to(TESTS).parts
    if parts[0] != "methods" or len(parts) < 3:
        return below("src/ramify", *(["experiments"] if experiments else []))
    kernel = {file for file in below("src/ramify") if SOURCES / "methods" not in file.parents}
    lab = {file for file in below("experiments") if parts[1] in file.parts or file.parent == EXPERIMENTS}
    return kernel | imported(of_method(parts[1])) | (lab if experiments else set())


@cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.suffix in (".py", ".c", "") else ""


@cache
def _imports(file: Path) -> frozenset[str]:
    return code.imports(ast.parse(_text(file))) if file.suffix == ".py" else frozenset()


def _used(file: Path) -> set[str]:
    """Words that may name a helper: of what is imported, of files, of texts, of ``module:object``."""
    words = {word for name in _imports(file) for word in name.split(".")}
    return words | set(re.findall(r"\w+(?=\.(?:py|c)\b|:[\w{])|(?<=[\"'])\w+(?=[\"'])", _text(file)))


@cache
def _helpers() -> dict[str, set[Path]]:
    """Files of the tests that others import or start, by the word that names them."""
    found: dict[str, set[Path]] = {}
    for file in below("tests"):
        if file.suffix in (".py", ".c") and file.stem not in ("__init__", "conftest") and TESTS / "fixtures" not in file.parents:
            found.setdefault(file.stem, set()).add(file)
    return found


@cache
def _data() -> list[Path]:
    return [file for file in below("tests") if file.suffix != ".py" and TESTS / "fixtures" not in file.parents]


# -- the units -----------------------------------------------------------------------------------------------------------------


def units() -> list[Unit]:
    """All of them."""
    return [*_reproductions(), *_nulls(), *_slow(), *_kernels(), *_scripts()]


def _entry_points(group: str) -> Mapping[str, str]:
    project = tomllib.loads((ROOT / "experiments" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, str] = project["entry-points"][f"ramify.{group}"]
    return {slug: value.partition(":")[0] for slug, value in found.items()}


def _reproductions() -> Iterator[Unit]:
    for slug, module in _entry_points("reproductions").items():
        found = imported([module]) | below(*VERB)
        yield Unit("repro", f"repro {slug}", (".venv/bin/ramify", "repro", slug, "--quick"), frozenset(found))


def _nulls() -> Iterator[Unit]:
    for slug, module in _entry_points("cases").items():
        found = imported([module, *of_method(slug), "ramify_experiments.cases", "ramify_experiments.lab"]) | below(*VERB)
        yield Unit("nulls", f"nulls {slug}", (".venv/bin/ramify", "check", "method", slug, "--quick"), frozenset(found))


def _slow() -> Iterator[Unit]:
    for test in sorted(TESTS.rglob("test_*.py")):
        if "mark.slow" in _text(test):
            name, found = str(test.relative_to(ROOT)), tested(test)
            kind = "slow tests of everything" if below("src/ramify") <= found else "slow tests"
            yield Unit(kind, f"slow {name}", (*PYTEST, "-m", "slow", name), frozenset(found))


def _kernels() -> Iterator[Unit]:
    for name in UNDER_KERNELS:
        found = frozenset(tested(ROOT / name))
        for choice in KERNELS:
            yield Unit("kernels", f"kernels {name} {' '.join(choice)}", ("env", *choice, *PYTEST, name), found)


def _scripts() -> Iterator[Unit]:
    installed = below("src/ramify", "experiments", "scripts", "pyproject.toml")
    newcomer = below(
        "README.md", "docs/quickstart.md", "docs/howto/environments.md", "demo", "test", "examples", "tests/conftest.py"
    )
    newcomer |= {file for name in ("doc_blocks", "terminals", "test_main") for file in _helpers()[name]}
    verl = tested(TESTS / "integrations" / "test_verl_integration.py")
    reach = {
        "newcomer": installed | newcomer,
        "page": below("page", "src/ramify/web/static"),
        "verl": verl,
        "harnesses": tested(TESTS / "integrations" / "test_recorded_commands.py")
        | tested(TESTS / "integrations" / "test_coding_agent_tutorial.py")
        | below("docs/tutorials/a-coding-agent.md"),
        "slim": installed | below("tests"),
    }
    for name, found in reach.items():
        script = ROOT / ".ci" / name
        if script.is_file():
            python = (".venv/bin/python",) if name == "newcomer" else ()
            yield Unit("scripts", name, (*python, f".ci/{name}"), frozenset(found | {script}))


# -- what is kept, and what runs -----------------------------------------------------------------------------------------------


def read() -> dict[str, dict[str, Any]]:
    """Name of a unit -> ``hash``, ``seconds`` it took, and what it ``said`` last, when it last passed."""
    found: dict[str, dict[str, Any]] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}
    return found


def write(kept: Mapping[str, Mapping[str, Any]]) -> None:
    """One line a unit, so that two branches seldom touch the same."""
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(kept.items()))
    KEPT.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")


def seconds(unit: Unit, kept: Mapping[str, Mapping[str, Any]]) -> float:
    """How long it took when it last passed."""
    return float(kept.get(unit.name, {}).get("seconds", UNKNOWN))


def sample(changed: Iterable[Unit], kept: Mapping[str, Mapping[str, Any]], commit: str, budget: float = BUDGET) -> list[Unit]:
    """Of ``changed`` those that fit ``budget``: one of each kind, another of each, and so on, in an order that ``commit``
    decides.

    So a few that changed of one kind come before many of another, and where all have changed each commit has others. One that
    takes more than half of the budget, that is a whole lane, is in no sample.
    """
    kinds: dict[str, list[Unit]] = {}
    for unit in sorted(changed, key=lambda unit: hashlib.sha256(f"{commit} {unit.name}".encode()).digest()):
        kinds.setdefault(unit.kind, []).append(unit)
    chosen, left = [], budget
    for turn in zip_longest(*kinds.values()):
        for unit in filter(None, turn):
            if seconds(unit, kept) <= min(left, budget / 2):
                chosen.append(unit)
                left -= seconds(unit, kept)
    return chosen
