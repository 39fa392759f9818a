from __future__ import annotations

import ast
import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from web_sample import make_run

import ramify
from ramify.base.errors import UserError
from ramify.rollout.commands import run_name
from ramify.stats.intervals import paired_proportions
from ramify.trace.db import Run
from ramify.trace.node import Finding
from ramify.web.pages import interesting, node_html, report_html, script, tree_html, trees_html
from ramify.web.steps import merged, read_tree
from ramify.web.way import Nav

SOURCE = Path(ramify.__file__).parent
NAV = Nav("record", "run", "/run/run")
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Balanced(HTMLParser):
    """Counts tags and text, and fails on one that is not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.ids += [v or "" for k, v in attrs if k == "id"]
        self.links += [v or "" for k, v in attrs if k == "href"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with Run.open(make_run(tmp_path_factory.mktemp("runs") / "one")) as opened:
        yield opened


def test_the_report_has_every_part(run: Run) -> None:
    page = Balanced(report_html(run))
    for words in (
        "15.0 % → 52.5 %", "+37.5 points", "+31.3 to +43.3", "400 held-out episodes", "grpo", "Success and groups with mixed "
                                                                                              "outcomes",
        "sampling · 27k tokens", "training · 4.2 s", "evaluation before", "Abandoned prompts", "task-7", "train.lr", "0.0003",
        "weights", "w0", "ramify", ramify.__version__, "A_ep", "value of the state before the step", "the environment answered",
    ):  # fmt: skip
        assert words in page.words, words
    assert page.seen.count("svg") == 2 + 2 + 3 * 2
    assert len(set(page.ids)) == len(page.ids)


def test_every_link_of_the_file_leads_to_a_step_in_it(run: Run) -> None:
    page = Balanced(report_html(run))
    assert page.links
    assert {link[1:] for link in page.links} <= set(page.ids)


def test_the_file_is_self_contained_and_has_its_policy(run: Run) -> None:
    html = report_html(run)
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    assert policy.replace("'", "&#x27;") in html
    assert html.count("<script>") == 1
    page, _, rest = html.partition("<script>")
    assert rest == f"{script()}</script>\n</body>\n</html>"
    assert not re.search(r"<(script(?! type=\"application/json\" id=\"data\">)|link|img|iframe|object|embed|form|base)\b", page)
    assert not re.search(r"\bsrc=|@import|url\(|\son\w+=", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}
    assert html == report_html(run)


def test_other_pages(run: Run) -> None:
    name = run.trees()[0].name
    tree = read_tree(run, name)
    page = Balanced(tree_html(run, name))
    assert {f"step-{step.id}" for step in tree.steps} <= set(page.ids)
    leaf = tree.ends[0]
    text = Balanced(node_html(run, leaf.id[:10], NAV)).words
    assert "A_ec" in text
    assert "Find the key" in text
    assert all(info.name in Balanced(trees_html(run, NAV)).words for info in run.trees())
    with pytest.raises(UserError, match="did you mean 'ours-0000/task-0'"):
        tree_html(run, "ours-0000/task-00")
    with pytest.raises(UserError, match="no node 'zz'"):
        node_html(run, "zz", NAV)


def test_steps_follow_the_stored_tree(run: Run) -> None:
    name = run.trees("ours-0002")[-1].name
    tree = read_tree(run, name)
    nodes = {node.id: node for node in run.nodes(name)}
    assert {step.id for step in tree.steps} == {node.id for node in nodes.values() if node.role == "assistant"}
    assert len(tree.ends) == len(run.scores(tree=name, scorer="env")) == 6
    for step in tree.steps:
        observation = nodes[str(nodes[step.id].parent)]
        assert step.before == observation.state_key
        assert step.parent == (None if step.depth == 1 else observation.parent)
        assert step.credit == run.annotations(node=step.id)[0].value["A"]
        answer = next(node for node in nodes.values() if node.parent == step.id)
        assert (step.after, step.answer) == (answer.state_key, answer.text)


def test_merged_states_count_every_step_once(run: Run) -> None:
    tree = read_tree(run, run.trees("ours-0002")[-1].name)
    states, moves, left_out = merged(tree)
    assert left_out == 0
    assert sum(move.visits for move in moves) == len(tree.steps)
    assert sum(state.visits for state in states if state.outcome) == len(tree.ends)
    known = {state.id: state for state in states}
    assert known["hall|nothing"].depth == 0
    few, fewer_moves, left_out = merged(tree, most=2)
    assert left_out == len([s for s in states if not s.outcome]) - 2
    assert all({move.source, move.target} <= {s.id for s in few} for move in fewer_moves)
    assert "hall|nothing" in {s.id for s in few}


def test_interesting_trees_are_mixed_and_of_different_updates(run: Run) -> None:
    names = interesting(run)
    trees = [read_tree(run, name) for name in names]
    assert [tree.info.group for tree in trees] == ["ours-0000", "ours-0001", "ours-0002"]
    for tree in trees:
        rivals = [read_tree(run, info.name) for info in run.trees(tree.info.group)]
        assert (tree.mixed, tree.strongest) == max((rival.mixed, rival.strongest) for rival in rivals)


def test_the_budget_and_the_abandoned_prompts_are_this_runs_own(run: Run) -> None:
    words = Balanced(report_html(run)).words
    assert "task-99" not in words
    assert "sampling · 9.3 s" in words
    assert "success of grpo" in words


def test_gains_are_paired_where_the_outcomes_are_known(tmp_path: Path) -> None:
    before = {"success": 0.25, "interval": [0.1, 0.5], "n": 4, "outcomes": [0, 0, 0, 1]}
    after = {"success": 0.75, "interval": [0.5, 0.9], "n": 4, "outcomes": [1, 1, 0, 1]}
    with Run.create(tmp_path / "run", {}) as run:
        run.log("eval", "before", before)
        run.log("eval", "after", after)
        low, high = (f"{100 * end:+.1f}".replace("-", "−") for end in paired_proportions([1, 1, 0, 1], [0, 0, 0, 1]))
        assert f"95 % interval {low} to {high}" in Balanced(report_html(run)).words


def test_an_unfinished_run_and_an_empty_one_have_reports(tmp_path: Path) -> None:
    with Run.open(make_run(tmp_path / "half", updates=2, finished=False)) as run:
        assert "not finished: 2 updates are done" in Balanced(report_html(run)).words
    Run.create(tmp_path / "empty", {}).close()
    with Run.open(tmp_path / "empty") as run:
        words = Balanced(report_html(run)).words
    assert "no evaluation yet" in words
    assert "Nothing was spent." in words


def test_one_function_escapes_and_one_place_trusts() -> None:
    """HTML is escaped in ``render/escape.py`` alone; markup is trusted in ``web/pages.py`` alone; templates have no raw door."""
    escapers, trusters = set(), set()
    for file in sorted(SOURCE.rglob("*.py")):
        name = str(file.relative_to(SOURCE))
        text = file.read_text(encoding="utf-8")
        if not re.search(r"escape|quoteattr|Markup|(lt|gt|amp|quot);", text):
            continue  # parsing all files takes seconds
        for node in ast.walk(ast.parse(text)):
            last = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
            called = ast.unparse(node.func) if last in ("escape", "quoteattr", "Markup") else ""
            if called in ("html.escape", "markupsafe.escape", "saxutils.escape", "xml.sax.saxutils.escape", "quoteattr"):
                escapers.add(name)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"&(lt|gt|amp|quot);", node.value):
                escapers.add(name)
            if called in ("Markup", "markupsafe.Markup"):
                trusters.add(name)
    assert escapers == {"render/escape.py"}
    assert trusters == {"web/pages.py"}
    for template in (SOURCE / "web" / "templates").iterdir():
        assert not re.search(
            r"\|\s*(safe|e|escape|forceescape|tojson|xmlattr|striptags|urlize)\b|autoescape", template.read_text()
        )
        scripts = re.findall(r"<script.*", template.read_text())
        assert template.name == "base.html" or not scripts, template


def test_the_headline_is_the_stored_finding(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    with Run.open(folder, write=True) as run:
        name = run.trees()[-2].name
        step = read_tree(run, name).steps[0]
        assert f"ramify why {run_name(run.folder)} {name}" in Balanced(tree_html(run, name)).words
        lost = Finding("lost here", "why", "Lost at `go <b>`: success 73% -> 0%.", step.id, action="ramify fork x y", value=-0.73)
        other = Finding("no step stands out", "why", "No step stands out.", read_tree(run, run.trees()[1].name).steps[0].id)
        run.conclude("why", [other, lost])
        html = tree_html(run, name)
        assert '<p class="why">Lost at <code>go &lt;b&gt;</code>: success 73% -&gt; 0%.</p>' in html
        assert "ramify why" not in Balanced(html.partition("<script")[0] + "</body></html>").words
        assert interesting(run)[0] == name
