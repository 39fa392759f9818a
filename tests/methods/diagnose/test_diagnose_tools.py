"""The tools on real folders: what they show, what they refuse, and repositories that are not meant well."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.methods.diagnose.snapshot import Snapshot, split_lines
from ramify.methods.diagnose.tools import RepoTools

PACKAGE = {
    "shop/__init__.py": "from .prices import total\n",
    "shop/prices.py": '"""Prices."""\n\nfrom shop import stock\nfrom . import taxes\n\n\ndef total(items):\n    return '
    "sum(items) + taxes.of(items)\n",
    "shop/stock.py": "import shop.prices\n\n\nclass Stock:\n    def count(self):\n        return 3\n",
    "shop/taxes.py": "def of(items):\n    return len(items)  # 5.0 [a-z]+ TAX\n",
    "main.py": "from shop import total\n\nprint(total([1]))\n",
    "docs/notes.py": "total\n",
    "README.md": "total\n",
}


def write(folder: Path, files: dict[str, str | bytes] | dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def found_by(folder: Path, query: str) -> str:
    return RepoTools(Snapshot.open(folder)).call("codebase_search", {"query": query}).text


def test_ripgrep_changes_nothing_of_what_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("rg") is None:
        pytest.skip("ripgrep is not installed: ITS PRESELECTION IN LARGE REPOSITORIES IS NOT TESTED")
    folder = write(tmp_path / "repo", PACKAGE)
    monkeypatch.setattr("ramify.methods.diagnose.snapshot.MANY", 2)
    queries = ("TOTAL", "[a-z]+", "5.0", "def of(", "nothing of the kind")
    with_it = [found_by(folder, query) for query in queries]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert with_it == [found_by(folder, query) for query in queries]


def test_a_ripgrep_that_fails_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/rg"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setattr("ramify.methods.diagnose.snapshot.MANY", 2)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert "shop/taxes.py: 2" in found_by(write(tmp_path / "repo", PACKAGE), "len(items)")


@pytest.fixture
def tools(tmp_path: Path) -> RepoTools:
    return RepoTools(Snapshot.open(write(tmp_path / "repo", PACKAGE)))


def test_lines_are_those_of_the_file(tools: RepoTools) -> None:
    found = tools.call("view_file", {"path": "shop/prices.py", "view_range": [7, 8]})
    assert found.text.splitlines()[:3] == [
        "shop/prices.py, lines 7 to 8 of 8",
        "    7  def total(items):",
        "    8      return sum(items) + taxes.of(items)",
    ]
    assert found.shown == (("shop/prices.py", 7, 8),)
    assert tools.call("view_file", {"path": "./shop/prices.py", "view_range": [7, 8]}) == found  # the same call, the same bytes
    assert RepoTools(tools.snapshot).call("view_file", {"path": "shop/prices.py", "view_range": [7, 8]}).digest == found.digest


def test_imports_of_packages_cycles_and_names_handed_on(tools: RepoTools) -> None:
    imports, importers = tools.code.imports, tools.code.importers
    assert imports["shop/prices.py"] == ("shop/__init__.py", "shop/stock.py", "shop/taxes.py")
    assert imports["shop/stock.py"] == ("shop/prices.py",)  # a cycle
    assert imports["main.py"] == ("shop/__init__.py", "shop/prices.py")  # through the package's __init__
    for a, targets in imports.items():
        assert all(a in importers[b] for b in targets)
    assert sum(map(len, imports.values())) == sum(map(len, importers.values()))
    assert "  shop/prices.py" in tools.call("connected_tree", {"file": "shop/stock.py"}).text


def test_search_is_literal_and_takes_no_heed_of_case(tools: RepoTools) -> None:
    assert "shop/taxes.py: 2" in tools.call("codebase_search", {"query": "[A-Z]+ tax"}).text
    assert "no line holds" in tools.call("codebase_search", {"query": "t.tal"}).text
    assert "docs/" not in tools.call("codebase_search", {"query": "total"}).text
    assert "README" not in tools.call("repo_tree", {}).text


@given(st.text(alphabet="ab.*[]()+?^$\\|", min_size=1, max_size=6))
def test_what_a_file_holds_is_found(query: str) -> None:
    held = RepoTools(Snapshot({"a.py": f"x = 1\ny = '{query}'\n"}))
    assert ("a.py: 2" in held.call("codebase_search", {"query": query}).text) == bool(query.strip())


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("view_fil", {"path": "main.py"}, "did you mean 'view_file'"),
        ("view_file", {"file": "main.py"}, "no argument 'file'"),
        ("view_file", {}, "needs 'path'"),
        ("view_file", {"path": 3}, "must be text"),
        ("view_file", {"path": "main.py", "view_range": [3, 1]}, "first <= last"),
        ("view_file", {"path": "main.py", "view_range": [True, 2]}, "two whole numbers"),
        ("view_file", {"path": "main.py", "view_range": [50, 60]}, "there is no line 50"),
        ("view_file", {"path": "shop/price.py"}, "did you mean shop/prices.py"),
        ("view_file", {"path": "prices.py"}, "did you mean shop/prices.py"),
        ("view_file", {"path": "../../etc/passwd"}, "outside the repository"),
        ("view_file", {"path": "/etc/passwd"}, "outside the repository"),
        ("codebase_search", {"query": "  "}, "not empty"),
        ("codebase_search", {"query": "a\nb"}, "one line"),
    ],
)
def test_a_call_that_cannot_be_made_says_why(tools: RepoTools, name: str, arguments: dict[str, object], why: str) -> None:
    found = tools.call(name, arguments)
    assert not found.ok
    assert why in found.text


def test_a_tool_that_is_not_offered_is_refused(tools: RepoTools) -> None:
    assert "no tool" in RepoTools(tools.snapshot, ("view_file",)).call("view_file", {"path": "main.py"}).text


def test_a_hostile_folder_is_read_and_what_is_skipped_is_named(tmp_path: Path) -> None:
    secret = write(tmp_path / "outside", {"secret.py": "KEY = 'hunter2'\n"})
    repo = write(
        tmp_path / "repo",
        {
            "a.py": b"x = '\xff\xfe'\r\ny = 2\r\n",
            "wide.py": "z = 3\n".encode("utf-16"),
            "blob.py": b"\0\1\2" * 100,
            "huge.py": b"# long\n" * 400_000,
            "deep.py": "x = " + "(" * 4000 + ")" * 4000 + "\n",
            "old.py": "print 'no Python 3'\n",
            "bom.py": b"\xef\xbb\xbfq = 1\n",
        },
    )
    (repo / "link.py").symlink_to(secret / "secret.py")
    (repo / "away").symlink_to(secret)
    (repo / "loop").symlink_to(repo)
    os.mkfifo(repo / "pipe.py")
    held = RepoTools(Snapshot.open(repo))
    assert held.snapshot.lines("a.py") == ("x = '\ufffd\ufffd'", "y = 2")
    assert held.snapshot.lines("wide.py") == ("z = 3",)
    assert held.snapshot.lines("bom.py") == ("q = 1",)
    why = held.snapshot.skipped
    assert "binary" in why["blob.py"]
    assert "larger" in why["huge.py"]
    assert all("link" in why[path] for path in ("link.py", "away", "loop"))
    assert "pipe.py" in why
    for path in ("link.py", "away/secret.py", "loop/a.py", "pipe.py"):
        assert not held.call("view_file", {"path": path}).ok
    assert "hunter2" not in held.call("codebase_search", {"query": "hunter2"}).text.replace("'hunter2'", "")
    assert held.code.imports["deep.py"] == ()


def test_a_file_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    from ramify.methods.diagnose import snapshot

    repo = write(tmp_path / "repo", {f"m{i}.py": "x = 1\n" for i in range(3)})
    write(tmp_path, {"secret.py": "KEY = 1\n"})
    many, snapshot.MANY = snapshot.MANY, 1  # so that files are read when they are asked for
    try:
        held = RepoTools(Snapshot.open(repo))
        (repo / "m1.py").unlink()
        (repo / "m1.py").symlink_to(tmp_path / "secret.py")
        assert "KEY" not in held.call("view_file", {"path": "m1.py"}).text
        assert "m1.py: " not in held.call("codebase_search", {"query": "KEY"}).text
        assert "x = 1" in held.call("view_file", {"path": "m0.py"}).text
    finally:
        snapshot.MANY = many


@pytest.mark.slow
def test_a_hundred_thousand_files(tmp_path: Path) -> None:
    for folder in range(100):
        (tmp_path / "repo" / f"p{folder}").mkdir(parents=True)
        for file in range(1000):
            (tmp_path / "repo" / f"p{folder}" / f"m{file}.py").write_bytes(b"value = 1\n")
    held = RepoTools(Snapshot.open(tmp_path / "repo"))
    tree = held.call("repo_tree", {}).text
    assert "100000 files" in tree
    assert len(tree.splitlines()) < 1600
    assert held.call("view_file", {"path": "p7/m7.py"}).ok
    assert "p0/m0.py" in held.call("codebase_search", {"query": "VALUE"}).text


@pytest.mark.parametrize(
    ("files", "why"), [({}, "no source file"), ({"README.md": "hi", "docs/a.py": "x"}, "no source file"), (None, "no folder")]
)
def test_a_repository_without_source_is_refused(tmp_path: Path, files: dict[str, str] | None, why: str) -> None:
    if files is not None:
        (tmp_path / "repo").mkdir()
        write(tmp_path / "repo", files)
    with pytest.raises(UserError, match=why):
        Snapshot.open(tmp_path / "repo")


def test_what_git_ignores_is_left_out(tmp_path: Path) -> None:
    names = ("a.py", "made.py", "gen/b.py", "x/gen/c.py", "top/d.py", "x/top/d.py", "x/e_pb2.py", "x/keep_pb2.py")
    repo = write(tmp_path, dict.fromkeys(names, "x = 1\n"))
    (repo / ".gitignore").write_text("# made\nmade.py\ngen/\n/top\n*_pb2.py\n!keep_pb2.py\n", encoding="utf-8")
    assert Snapshot.open(repo).paths == ["a.py", "x/keep_pb2.py", "x/top/d.py"]


def test_lines_end_as_an_editor_counts_them() -> None:
    assert split_lines("a\r\nb\x0cc\u2028d\n") == ("a", "b\x0cc\u2028d")
    assert split_lines("") == ()


def test_other_languages(tmp_path: Path) -> None:
    pytest.importorskip("tree_sitter_javascript", reason="the extra diagnose is not installed: OTHER LANGUAGES ARE NOT TESTED")
    files = {
        "web/app.ts": "import { total } from './lib/sums';\nexport class App { run() { return total([]); } }\n",
        "web/lib/sums.ts": "export function total(xs: number[]) { return xs.length; }\n",
        "web/old.js": "const sums = require('./lib/sums.js');\n",
        "go/main.go": 'package main\n\nimport "example.com/x/go/util"\n\nfunc main() { util.Do() }\n',
        "go/util/util.go": "package util\n\nfunc Do() {}\n",
        "rs/src/main.rs": "mod util;\nuse crate::util::deep;\nfn main() {}\n",
        "rs/src/util.rs": "pub fn deep() {}\n",
        "j/src/a/B.java": "package a;\nimport a.C;\nclass B { int n() { return 1; } }\n",
        "j/src/a/C.java": "package a;\nclass C {}\n",
    }
    code = RepoTools(Snapshot.open(write(tmp_path, files))).code
    assert code.imports["web/app.ts"] == ("web/lib/sums.ts",)
    assert code.imports["web/old.js"] == ("web/lib/sums.ts",)
    assert code.imports["go/main.go"] == ("go/util/util.go",)
    assert code.imports["rs/src/main.rs"] == ("rs/src/util.rs",)
    assert code.imports["j/src/a/B.java"] == ("j/src/a/C.java",)
    assert [(s.name, s.start, s.end) for s in code.facts("web/lib/sums.ts").symbols] == [("total", 1, 1)]
    found = code.symbol("web/app.ts", 2, 2)
    assert found is not None
    assert found.name == "run"
