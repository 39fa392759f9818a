"""Plug-ins, good and broken: loaded through the entry-point group, reported when they fail, never fatal, off by one variable."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ramify.trace.db import Run

ROOT = Path(__file__).resolve().parents[2]

GOOD = '''
"""A good plug-in."""
from ramify.base.registry import register
from ramify.score.match import ExactMatch
print("loading noise")

@register("judge", "stranger")
class Stranger(ExactMatch):
    """A stranger's judge."""
    name = "stranger"
'''
BROKEN = {
    "bad-import": ("import no_such_module_anywhere", "No module named 'no_such_module_anywhere'"),
    "bad-syntax": ("def f(:", "SyntaxError"),
    "exits": ("import sys; sys.exit(7)", "SystemExit: 7"),
    "aborts": ("class Stop(BaseException): ...\nraise Stop('all')", "Stop: all"),
    "taken": (
        "from ramify.base.registry import register\n@register('searcher', 'greedy')\ndef greedy(): ...",
        "registered twice",
    ),
    "taken-env": ("from ramify.base.registry import register\n@register('env', 'chain')\nclass C: ...", "registered twice"),
    "wrong-object": ("from ramify.base.registry import register\nregister('env', 'answer')(42)", "a class or function is needed"),
    "wrong-kind": (
        "from ramify.base.registry import register\nregister('environments', 'x')",
        "unknown kind of component 'environments'",
    ),
    "wrong-name": ("from ramify.base.registry import register\nregister('env', 'a:b')", "is not a name for a env"),
    "escapes": ("raise ValueError('\\x1b]0;owned\\x07 \\x1b[2Jx')", "ValueError"),
}


def install(folder: Path, entries: dict[str, str], name: str = "stranger") -> None:
    """Write what pip writes: modules, and a .dist-info that names their entry points."""
    meta = folder / f"{name}-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{entry} = {module}" for entry, module in entries.items()]
    (meta / "entry_points.txt").write_text("\n".join(["[ramify]", *lines, ""]))


def run(folder: Path, code: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """``code`` in a fresh interpreter that sees the packages in ``folder``."""
    environ = {key: value for key, value in os.environ.items() if key != "RAMIFY_PLUGINS"} | {"PYTHONPATH": str(folder)} | env
    return subprocess.run([sys.executable, "-c", code, *args], env=environ, capture_output=True, text=True, cwd=folder)


def call(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command line, likewise."""
    return run(folder, "import sys; from ramify.cli.main import main; sys.exit(main())", *args, **env)


#: Several calls of it in one interpreter; the code is the sum of theirs.
SEVERAL = "import sys; from ramify.cli.main import main; sys.exit(sum(main(words.split()) for words in sys.argv[1:]))"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed plug-ins: one good, ten broken, one that names a class, one that names nothing."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "good_plugin.py").write_text(GOOD)
    entries = {
        "good": "good_plugin",
        "again": "good_plugin",
        "names-a-class": "good_plugin:Stranger",
        "no-attribute": "good_plugin:Nothing",
    }
    for name, (code, _) in BROKEN.items():
        module = "broken_" + name.replace("-", "_")
        (folder / f"{module}.py").write_text(code + "\n")
        entries[name] = module
    install(folder, entries)
    return folder


def test_a_plugin_is_listed_and_checked_and_broken_ones_are_not_fatal(site: Path) -> None:
    listed = call(site, "list", "judge", "--json")
    assert (listed.returncode, "Traceback" in listed.stderr) == (0, False)
    assert json.loads(listed.stdout)["names"]["stranger"] == "A stranger's judge."
    assert "loading noise" in listed.stderr
    more = run(site, SEVERAL, "list searcher --json", "list env --json", "check judge stranger")
    searchers, envs, *_ = more.stdout.splitlines()
    assert "greedy" in json.loads(searchers)["names"]
    assert "chain" in json.loads(envs)["names"]
    assert more.returncode == 0


@pytest.mark.slow
def test_the_doctor_names_every_broken_plugin_and_why(site: Path) -> None:
    done = call(site, "doctor", "--json")
    assert done.returncode == 1
    rows = {row["name"]: row for row in json.loads(done.stdout)["findings"] if row["topic"] == "plug-ins"}
    assert {name for name, row in rows.items() if row["status"] == "ok"} - {"incidents", "nvidia"} == {"good", "again"}
    assert rows["good"]["text"] == "good_plugin, of stranger"
    for name, (_, reason) in BROKEN.items():
        assert reason in rows[name]["text"], rows[name]
    assert "where a module is expected" in rows["names-a-class"]["text"]
    assert "AttributeError" in rows["no-attribute"]["text"]
    assert "\x1b" not in done.stdout + done.stderr


def test_a_fault_is_said_to_be_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("def verb():\n    return 1 / 0\n")
    (tmp_path / "mine.py").write_text("def judge():\n    return {}['x']\n")
    install(tmp_path, {"odd": "odd"})
    code = """
import odd
from ramify.base.ids import stable_hash
from ramify.base.plugins import find_attribute, whose
for fault in (odd.verb, find_attribute("mine.py:judge"), lambda: stable_hash(1.5), lambda: int("x")):
    try:
        fault()
    except Exception as error:
        print(whose(error))
"""
    assert run(tmp_path, code).stdout.splitlines() == ["the plug-in 'odd'", f"your own {tmp_path / 'mine.py'}", "", ""]


@pytest.mark.slow
def test_all_plugins_are_off_by_one_variable(site: Path) -> None:
    assert "stranger" not in json.loads(call(site, "list", "judge", "--json", RAMIFY_PLUGINS="").stdout)["names"]
    look = (
        "import json; from ramify.base import codec; from ramify.cli import doctor; "
        "found = doctor.Findings(); doctor._plugins(found); "
        "print(json.dumps(codec.to_json(found.rows)))"
    )
    (row,) = json.loads(run(site, look, RAMIFY_PLUGINS="").stdout)
    assert (row["status"], row["text"]) == ("ok", "turned off by RAMIFY_PLUGINS")


@pytest.mark.slow
def test_two_plugins_with_one_name_keep_the_first(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}_plugin.py").write_text(GOOD.replace("A stranger's", f"The {name}"))
        install(tmp_path, {name: f"{name}_plugin"}, name)
    assert json.loads(call(tmp_path, "list", "judge", "--json").stdout)["names"]["stranger"] == "The first judge."
    done = run(tmp_path, "from ramify.base import plugins; print(*(failure.name for failure in plugins.load()))")
    assert done.stdout.split() == ["second"]


@pytest.mark.slow
def test_a_plugin_that_hangs_is_named(tmp_path: Path) -> None:
    (tmp_path / "hanging_plugin.py").write_text("import sys, time\nwhile True: time.sleep(0.1)\n")
    install(tmp_path, {"hanging": "hanging_plugin"})
    environ = {key: value for key, value in os.environ.items() if key != "RAMIFY_PLUGINS"} | {"PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-c", "from ramify.cli.main import main; main(['list', 'judge'])"]
    with subprocess.Popen(words, env=environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        wanted = "the plug-in 'hanging' ('hanging_plugin') is still loading; RAMIFY_PLUGINS= turns plug-ins off"
        # before it may come a line that says that the verb works; where it never comes, the test's time ends it
        assert any(wanted in line for line in process.stderr)
        process.kill()


def test_importing_ramify_looks_for_no_plugin(site: Path) -> None:
    done = run(site, "import sys, ramify, ramify.cli.main; print('good_plugin' in sys.modules)")
    assert done.stdout.split() == ["False"]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A copy of examples/plugin, and the folder into which pip installed it, offline, with the setuptools that is here."""
    pytest.importorskip("setuptools", reason="setuptools is not installed: THE SAMPLE PLUG-IN IS NOT TESTED")
    folder = tmp_path_factory.mktemp("sample")
    source, target = folder / "plugin", folder / "site"
    shutil.copytree(ROOT / "examples" / "plugin", source)
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run([*pip, "--target", str(target), str(source)], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return source, target


@pytest.mark.slow
def test_the_sample_package_installs_and_its_parts_are_found(sample: tuple[Path, Path], tmp_path: Path) -> None:
    source, target = sample
    for kind, name in (("env", "lights"), ("judge", "switches"), ("model", "lights-expert")):
        assert name in json.loads(call(target, "list", kind, "--json").stdout)["names"]
        done = call(target, "check", kind, name)
        assert done.returncode == 0, done.stdout + done.stderr
    small = [
        "--updates", "1", "--tokens", "200", "--eval-episodes", "2", "--tasks-per-update", "2", "--train-tasks", "4",
        "--max-reply", "6",
    ]  # fmt: skip
    done = call(target, "improve", "--env", "lights", *small, "--out", str(tmp_path / "run"), "--json")
    assert done.returncode == 0, done.stderr
    own = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "ramify.integrations.pytest.plugin"]
    environ = dict(os.environ) | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    tested = subprocess.run(own, cwd=source, env=environ, capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout


@pytest.mark.slow
def test_the_samples_method_works_on_a_run_as_ours_do(sample: tuple[Path, Path], tmp_path: Path) -> None:
    """It reads, forks and marks a run of a built-in agent in a built-in environment, and the run shows it."""
    _, target = sample
    folder = tmp_path / "run"
    played = call(target, "rollout", "--env", "household", "--out", str(folder), "--json")
    assert played.returncode == 0, played.stderr
    plain, forked, again = (
        json.loads(call(target, "detours", "find", str(folder), "--json", *fork).stdout) for fork in ([], *2 * [["--fork", "1"]])
    )
    assert plain["detours"]
    assert forked == again
    assert [one["reply"] for one in forked["detours"]] == [one["reply"] for one in plain["detours"]]
    assert forked["forks"]["n"] == len({one["before"] for one in plain["detours"]})

    with Run.open(folder) as run:
        found = [one.node for one in run.findings(maker="detours find") if one.name == "detour"]
        assert sorted(map(str, found)) == sorted({one["reply"] for one in plain["detours"]})
        assert {note.node for note in run.annotations(name="detour")} == set(found)
    shown = call(target, "show", str(folder)).stdout
    assert all(text in shown for text in ("detours find   detour", "with a detour", "back to step", "continuations"))


@pytest.mark.slow
def test_the_samples_method_passes_its_cases_and_its_reproduction(sample: tuple[Path, Path]) -> None:
    done = run(sample[1], SEVERAL, "check method detours --quick --json", "repro detours --quick --json")
    assert done.returncode == 0, done.stdout + done.stderr
    checked, reproduced = map(json.loads, done.stdout.splitlines())
    assert [(one["truth"], one["status"]) for one in checked["cases"]] == [("nothing", "pass"), ("planted", "pass")]
    assert reproduced["passed"]


def test_the_sample_uses_public_names_alone() -> None:
    """No module or name that begins with an underscore, none of a method of ramify's."""
    files = sorted((ROOT / "examples" / "plugin" / "src").rglob("*.py"))
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {f"{node.module}.{alias.name}" for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    names.discard("__future__.annotations")
    assert "ramify.kit.Verbs" in names
    assert [name for name in names if name.startswith("ramify.methods") or "._" in f".{name}"] == []
    private = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr[:2] != "__"]
    assert [node.attr for node in private if not (isinstance(node.value, ast.Name) and node.value.id == "self")] == []


def test_a_model_of_ones_own_is_recognised_without_reading_its_properties(tmp_path: Path) -> None:
    """Those of an endpoint are requests. What lacks a member is still none."""
    from ramify.base.errors import UserError
    from ramify.engine.named import own_model

    lines = [
        "class Near:",
        "    identity = None",
        "    @property",
        "    def capabilities(self): raise SystemError('it was read')",
    ]
    lines += ["    async def sample(self, *given): ...", "class Whole(Near):", "    async def logprobs(self, *given): ..."]
    (tmp_path / "own_models.py").write_text(
        "\n".join([*lines, "whole, near = Whole(), Near()", "def make(): return Whole()"]) + "\n"
    )
    path = tmp_path / "own_models.py"
    assert type(own_model(f"{path}:whole")).__name__ == type(own_model(f"{path}:make")).__name__ == "Whole"
    with pytest.raises(UserError):
        own_model(f"{path}:near")
