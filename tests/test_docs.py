"""The docs cannot lie: their Python runs, their commands exist, every verb,
option and metric is described, the site builds strictly.

A page whose code needs an extra says so in its first lines, ``<!-- needs: trl -->``; it then runs with the slow tests. Shell
blocks are checked for verbs and options that exist; one below ``<!-- run -->`` is run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from doc_blocks import blocks, calls
from forked import Forks

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
NEEDS = re.compile(r"<!-- needs: ([\w, ]+) -->")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def needs(page: Path) -> list[str]:
    found = NEEDS.search(page.read_text(encoding="utf-8")[:400])
    return [word.strip() for word in found[1].split(",")] if found else []


def run(command: list[str], folder: Path) -> None:
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    worked(subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False))


def worked(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def run_page(page: Path, folder: Path, forks: Forks) -> int:
    """Run a page top to bottom: consecutive Python blocks share one namespace, in a folder that was empty before the first.

    Fails where something it runs fails; returns how many programs it ran.
    """
    python, ran, strict = "", 0, not needs(page)  # what others warn of is theirs
    for language, text, wanted in [*blocks(page), ("", "", False)]:
        if language == "python":
            python += text + "\n"
            continue
        if python and (wanted or not language):
            worked(forks.run(python, folder, strict=strict))
            python, ran = "", ran + 1
        if wanted and language == "sh":
            run(["sh", "-eu", "-c", text], folder)
            ran += 1
    if python:
        worked(forks.run(python, folder, strict=strict))
        ran += 1
    return ran


def with_code(extras: bool) -> list[Path]:
    """Pages with something to run, without or with the need of an extra; pages whose shell blocks run count as the latter."""
    found = []
    for page in PAGES:
        all_blocks = list(blocks(page))
        slow = bool(needs(page)) or any(wanted for _, _, wanted in all_blocks)
        if slow == extras and any(language == "python" or wanted for language, _, wanted in all_blocks):
            found.append(page)
    return found


DEFAULT = ("README.md", "docs/why.md")
"""Pages whose code every run of the tests runs; that of the others is slow."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name(page), marks=[] if name(page) in DEFAULT else [pytest.mark.slow])
        for page in with_code(extras=False)
    ],
)
def test_the_code_on_a_page_runs(page: Path, tmp_path: Path, forks: Forks) -> None:
    assert run_page(page, tmp_path, forks) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", with_code(extras=True), ids=name)
def test_the_code_on_a_page_that_needs_more_runs(page: Path, tmp_path: Path, forks: Forks) -> None:
    for module in needs(page):
        pytest.importorskip(module, reason=f"{module} is not installed: THE CODE OF {name(page)} IS NOT TESTED")
    assert run_page(page, tmp_path, forks) > 0


@cache
def load(script: str) -> ModuleType:
    """A script of the docs folder as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{script}", ROOT / "docs" / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@cache
def known() -> dict[str, set[str]]:
    """Verb -> its options, settings included."""
    found = {}
    for verb, command in load("commands").commands():
        written = [text.split()[0] for text, _ in load("commands").options(command) if text.startswith("-")]
        found[verb] = {option for text in written for option in text.split("/")} | {"--help", "-h"}
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_commands_on_a_page_exist(page: Path) -> None:
    wrong = []
    for language, text, _ in blocks(page):
        for words in calls(text) if language in ("", "sh", "console") else ():
            if not words or words[0].startswith("-") or not re.fullmatch(r"[a-z-]+", words[0]):
                continue
            verb = next((v for v in (" ".join(words[:2]), words[0]) if v in known()), None)
            if verb is None:
                wrong.append(f"no verb {' '.join(words[:2])}")
                continue
            own = words[: words.index("--")] if "--" in words else words  # what follows is another program's
            options = [word.partition("=")[0] for word in own if word.startswith("--")]
            wrong += [f"{verb}: no option {option}" for option in options if option not in known()[verb]]
    assert wrong == []


def test_each_command_of_the_first_page_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """The page that asks what you have and what you want: one command each, by its verb and its options."""
    from ramify.cli.main import main

    rows = re.findall(r"^\| (?!I ).*? \| `(\S[^`|]*)` \| \S", (ROOT / "docs/index.md").read_text(encoding="utf-8"), re.M)
    assert len(rows) == 21
    for row in rows:
        words = shlex.split(row)
        if words[0] == "./demo":
            assert (ROOT / "demo").exists()
            continue
        own = words[1 : words.index("--")] if "--" in words else words[1:]
        verb = next(v for v in (" ".join(own[:2]), own[0]) if v in known())
        assert {word for word in own if word.startswith("-")} - {"-n"} <= known()[verb], row
        assert main([*verb.split(), "--help"]) == 0
    capsys.readouterr()


def test_every_page_is_in_the_site_and_every_method_has_one() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert set(listed) == {page for page in pages if not page.startswith(("reference/verbs/", "reference/python/"))}
    from ramify.base.registry import builtin_methods

    assert {f"methods/{slug}.md" for slug in builtin_methods()} <= pages


@pytest.mark.parametrize("script", ["tables", "performance", "nulls", "claims", "gallery"])
def test_a_generated_page_is_up_to_date(script: str) -> None:
    module = load(script)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), f"run: python docs/{script}.py"


@pytest.mark.parametrize(("script", "folder"), [("commands", "verbs"), ("api", "python")])
def test_a_generated_folder_is_up_to_date(script: str, folder: str) -> None:
    pages = load(script).pages()
    assert set((ROOT / "docs/reference" / folder).glob("*.md")) | {load(script).PAGE} == set(pages)
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"run: python docs/{script}.py"


def test_every_method_s_claims_are_listed() -> None:
    from ramify.base.registry import builtin_methods

    claims = load("claims")
    assert set(claims.CLAIMS) - set(claims.PAGES) == set(builtin_methods())


def test_a_claim_with_values_is_not_called_untried() -> None:
    claims = load("claims")
    rows = [(slug, claim) for slug, listed in claims.CLAIMS.items() for claim in listed]
    words = {
        (slug, claim.paper): claims.verdict(claim, {one["name"]: one for one in claims.report(slug)}) for slug, claim in rows
    }
    assert {key for key, word in words.items() if word == "not tried"} == {(slug, c.paper) for slug, c in rows if not c.checks}
    assert words["theory-loop", "Blind designs recover as well as adversarial ones"] == "measured"


def test_claims_say_why_there_is_no_figure_of_a_real_model() -> None:
    claims = load("claims")
    untold = [
        claim.real_says
        for slug, listed in claims.CLAIMS.items()
        for claim in listed
        if claim.real_says and not claim.real and claim.real_says not in claims.rows(slug, listed)
    ]
    assert untold == []


def test_every_known_miss_is_explained_on_its_page() -> None:
    silent = []
    for figures in sorted((ROOT / "repro").glob("*-*.json")):
        slug, size = figures.stem.rsplit("-", 1)
        if size == "outside":  # rows without a threshold
            continue
        words = slug.split("-")
        names = ["-".join(words[:n]) for n in range(1, len(words) + 1)]  # world-model-trained is a part of world-model
        pages = [ROOT / f"docs/{page}.md" for name in names for page in (f"methods/{name}-evidence", f"methods/{name}", name)]
        text = "".join(p.read_text(encoding="utf-8") for p in pages if p.exists())
        missed = [c["name"] for c in json.loads(figures.read_text(encoding="utf-8"))["checks"] if c["status"] == "known_failure"]
        silent += [f"{slug}: {check}" for check in missed if check not in text]
    assert silent == []


def test_links_inside_the_project_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)  # code holds no links
        for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)\s]+)\)", text):
            file = target.partition("#")[0]
            if not (page.parent / file).exists():
                broken.append(f"{name(page)}: {target}")
    assert broken == []


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    for module in ("material", "mkdocstrings"):
        pytest.importorskip(module, reason=f"{module} is not installed: THE SITE IS NOT BUILT")
    run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)], ROOT)
    assert (tmp_path / "index.html").is_file()
    outside = [page.name for page in tmp_path.rglob("*.html") if "fonts.googleapis" in page.read_text(encoding="utf-8")]
    assert outside == []
