"""The verbs, as a user calls them: exit codes, what is kept in the run, the MCP server, and a real endpoint's model."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from printed import said

from ramify.cli.main import main
from ramify.methods.diagnose.code import parser
from ramify.trace.db import Run
from tests.methods.diagnose.test_diagnose_tools import write

FILES = {
    "shop/sums.py": "def total(items):\n    result = 0\n    for item in items:\n        result += item\n    return result / "
    "len(items)\n",
    "shop/text.py": "def title(words):\n    return words[0].upper()\n",
    "main.py": "from shop.sums import total\n\n\ndef main():\n    print(total([]))\n",
}
ISSUE = (
    'It crashes.\n  File "main.py", line 5, in main\n  File "shop/sums.py", line 5, in total\nZeroDivisionError: division by '
    "zero\n"
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "repo", FILES)
    (tmp_path / "issue.md").write_text(ISSUE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: object) -> int:
    return main(["diagnose", *map(str, words)])


def test_a_bug_is_found_kept_and_shown(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    look = ("run", "--repo", "repo", "--issue", "issue.md", "--out", "kept")
    assert run(*look, "-o", "case.json", "--samples", "3", "--json") == 0
    case = said(capsys)
    assert (case["findings"][0]["file"], case["findings"][0]["start"], case["findings"][0]["end"]) == ("shop/sums.py", 1, 5)
    assert "no model" in case["meta"]["by"]
    assert 0 < case["findings"][0]["confidence"] < 1
    assert json.loads((place / "case.json").read_text(encoding="utf-8"))["issue_id"] == "issue"
    with Run.open("kept") as kept:
        (finding,) = kept.findings(maker="diagnose run")
        assert kept.kind == "diagnose run"
        assert finding.name == "bug location"
        assert "shop/sums.py:1-5" in finding.why
        assert kept.node(str(finding.node)).role == "assistant"
    assert run(*look, "--samples", "3", "--json") == 0  # loaded, and the same
    assert said(capsys)["findings"] == case["findings"]
    assert main(["show", "kept"]) == 0
    assert "bug location" in capsys.readouterr().out
    assert main(["show", "kept", "--html", "page.html"]) == 0
    assert "shop/sums.py:1-5" in (place / "page.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert run("inject", "kept", "--agent", "weak") == 0
    assert "shop/sums.py, lines 1 to 5" in capsys.readouterr().out
    assert run("inject", "case.json", "--agent", "0.9,0.95,0.1") == 0
    assert "shop/sums.py, lines" not in capsys.readouterr().out
    (place / "gold.jsonl").write_text(
        json.dumps({"instance_id": "issue", "spans": [["shop/sums.py", 5, 5]]}) + "\n", encoding="utf-8"
    )
    assert run("eval", "kept", "gold.jsonl", "--json") == 0
    scored = said(capsys)["metrics"]
    assert scored["coverage recall"]["value"] == 1
    assert scored["tightness"]["value"] == pytest.approx(0.2)


def test_a_second_issue_joins_the_first(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "other.md").write_text("title() raises IndexError for an empty list.\n", encoding="utf-8")
    for issue in ("issue.md", "other.md"):
        assert run("run", "--repo", "repo", "--issue", issue, "--out", "kept") == 0
    with Run.open("kept") as kept:
        assert [one.why.partition(":")[0] for one in kept.findings()] == ["issue", "other"]


def test_mistakes_are_one_sentence(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "empty.md").write_text("\n", encoding="utf-8")
    (place / "bad.json").write_text('{"findings": [{"file": "a.py", "start": 3, "end": 1}]}', encoding="utf-8")
    (place / "bad.jsonl").write_text('{"issue_id": "x"}\n', encoding="utf-8")
    write(place / "none", {"README.md": "x"})
    for words, why in [
        (("run", "--repo", "repo", "--issue", "empty.md"), "is empty"),
        (("run", "--repo", "none", "--issue", "issue.md"), "holds no source file"),
        (("run", "--repo", "nowhere", "--issue", "issue.md"), "no folder nowhere"),
        (("run", "--repo", "repo", "--issue", "nothing.md"), "cannot read the issue"),
        (("run", "--repo", "repo", "--issue", "issue.md", "--model", "chta:x@http://127.0.0.1:9"), "did you mean 'chat'"),
        (("inject", "bad.json"), "1 <= start <= end"),
        (("inject", "case.json"), "cannot read the case file"),
        (("inject", "--agent", "storng"), "did you mean 'strong'"),
        (("inject", "--fields", "root_cause"), "inject without a case takes no --fields"),
        (("eval", "bad.jsonl", "bad.jsonl", "--from", "openai"), "takes no --from"),
        (("inject", "--agent", "1,2,3"), "between 0 and 1"),
        (("eval", "bad.jsonl", "bad.jsonl"), "bad.jsonl:1"),
        (("tools", "--repo", "repo", "--call", "{"), "an object"),
        (
            ("tools", "--repo", "repo", "--call", '{"name": "view_file", "arguments": {"path": "/etc/passwd"}}'),
            "outside the repository",
        ),
    ]:
        assert run(*words) == 2, words
        err = capsys.readouterr().err
        assert why in err, (words, err)
        assert "Traceback" not in err
    assert not (place / "runs").exists()


def test_a_dry_run_makes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "--repo", "repo", "--issue", "issue.md", "--dry-run", "--json", "--out", "kept") == 0
    assert said(capsys)["cost_estimate"]["files"] == 3
    assert not (place / "kept").exists()


def test_a_missing_grammar_is_said_with_its_extra(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "repo/shop/app.js").write_text("import './a.js';\n", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    parser.cache_clear()
    try:
        assert run("run", "--repo", "repo", "--issue", "issue.md", "--dry-run") == 0
    finally:
        parser.cache_clear()
    assert 'imports of .js files are not read: pip install "ramify[diagnose]"' in capsys.readouterr().err


def test_masking_and_the_threshold(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("mask", "issue.md", "--repo", "repo", "--json") == 0
    masked = said(capsys)
    assert "sums.py" not in masked["text"]
    assert run("inject", "--agent", "0.6,0.8,0.4", "--json") == 0
    assert said(capsys)["threshold"] == pytest.approx(0.5)
    assert run("tools", "--schemas", "--json") == 0
    assert [one["function"]["name"] for one in said(capsys)["tools"]] == [
        "view_file",
        "codebase_search",
        "repo_tree",
        "connected_tree",
    ]


def test_the_cost_of_looking_is_kept_in_the_run_it_was_read_from(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "--repo", "repo", "--issue", "issue.md", "--out", "kept") == 0
    capsys.readouterr()
    assert run("eval", "kept", "--json") == 0
    cost = said(capsys)
    assert cost["share_of_replies"] == 1  # it never edits
    assert cost["classes"]["localize"] >= 2
    with Run.open("kept") as kept:
        assert {one.maker for one in kept.findings()} == {"diagnose run", "diagnose eval cost"}


AGENT = '''
def agent(messages):
    """Looks once, then answers."""
    seen = any("<observation>" in str(one["content"]) for one in messages)
    if not seen:
        return '<tool_call>{"name": "view_file", "arguments": {"path": "shop/text.py"}}</tool_call>'
    return '<findings>[{"root_cause": "an empty list"}]</findings><locations>\\\\nshop/text.py:1-2</locations>'


def broken(messages):
    raise OSError("no route")
'''


def test_a_model_drives_the_loop(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "mine.py").write_text(AGENT.replace("\\\\n", "\\n"), encoding="utf-8")
    assert (
        run(
            "run",
            "--repo",
            "repo",
            "--issue",
            "issue.md",
            "--model",
            "mine.py:agent",
            "--out",
            "kept",
            "--samples",
            "2",
            "--json",
        )
        == 0
    )
    case = said(capsys)
    assert case["findings"][0]["file"] == "shop/text.py"
    assert case["findings"][0]["root_cause"] == "an empty list"
    assert case["meta"]["signals"]["consistency"] == "span"
    assert case["meta"]["turns"] == 2
    with Run.open("kept") as kept:
        leaf = next(one.node for one in kept.findings())
        assert kept.provenance(str(kept.node(str(leaf)).provenance)).model.endswith("agent")
    assert run("run", "--repo", "repo", "--issue", "issue.md", "--model", "mine.py:broken", "--out", "failed") == 1
    assert "no route" in capsys.readouterr().err


@pytest.mark.slow
def test_the_tools_over_mcp(place: Path) -> None:
    mcp = pytest.importorskip("mcp", reason="mcp is not installed: THE SERVER IS NOT TESTED")
    stdio = pytest.importorskip("mcp.client.stdio")

    async def ask() -> tuple[list[str], str, bool]:
        parameters = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "ramify", "diagnose", "tools", "--repo", str(place / "repo")]
        )
        async with mcp.Client(stdio.stdio_client(parameters)) as client:
            listed = await client.list_tools()
            shown = await client.call_tool("view_file", {"path": "shop/text.py"})
            refused = await client.call_tool("view_file", {"path": "../issue.md"})
            return [one.name for one in listed.tools], shown.content[0].text, refused.is_error

    names, text, refused = asyncio.run(asyncio.wait_for(ask(), 60))
    assert names == ["view_file", "codebase_search", "repo_tree", "connected_tree"]
    assert "    1  def title(words):" in text
    assert refused


@pytest.mark.slow
def test_a_failing_test_gets_a_case_file(place: Path) -> None:
    (place / "repo" / "test_sums.py").write_text(
        "from shop.sums import total\n\n\ndef test_empty():\n    assert total([]) == 0\n", encoding="utf-8"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "--ramify-diagnose",
            str(place / "kept"),
            "--rootdir",
            ".",
        ],
        cwd=place / "repo",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_sums.py::test_empty: shop/sums.py:1-5" in done.stdout
    with Run.open(place / "kept") as kept:
        assert any("shop/sums.py:1-5" in finding.why for finding in kept.findings())
