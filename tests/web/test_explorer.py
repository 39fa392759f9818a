"""The pages in Chromium, as a person uses them: click, keys, a phone's width, no script at all,
and a tree of ten thousand steps."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from web_sample import make_run

from ramify.trace.db import Run
from ramify.trace.node import Provenance, Score, make_node
from ramify.web.pages import report_html, tree_html
from ramify.web.server import ServedRuns, guarded_pages, open_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def opened(browser: Any, file: Path | str, faults: list[str], **view: Any) -> Any:
    page = browser.new_context(viewport={"width": view.pop("width", 1280), "height": 900}, **view).new_page()
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    page.goto(file if isinstance(file, str) else file.as_uri())
    return page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explorer")
    with Run.open(make_run(folder / "run")) as run:
        (folder / "report.html").write_text(report_html(run), encoding="utf-8")
    return folder / "report.html"


@pytest.mark.parametrize("width", [1280, 390])
def test_a_step_is_chosen_by_click_and_by_key(browser: Any, report: Path, width: int) -> None:
    faults: list[str] = []
    page = opened(browser, report, faults, width=width)
    tree = page.locator("[data-tree='0']")
    tree.scroll_into_view_if_needed()
    panel = tree.locator(".panel")
    tree.locator("g.choice").nth(1).click()
    said = panel.locator("h4").first.inner_text()
    assert said in tree.locator("g.choice[aria-selected=true]").first.text_content()
    for words in ("It did", "It got back", "It was shown", "ramify fork"):
        assert words in panel.inner_text()
    panel.locator("summary", has_text="It was shown").click()
    assert "You are in the hall" in panel.inner_text()
    tree.locator("svg.map").focus()
    page.keyboard.press("Home")
    assert panel.locator("h4").first.inner_text() == "The task"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "step 2" in panel.inner_text()
    page.keyboard.press("ArrowLeft")
    assert "step 1" in panel.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("[data-tree='0'] .steps").count() == 0
    assert faults == []


def test_two_branches_are_compared(browser: Any, report: Path) -> None:
    faults: list[str] = []
    page = opened(browser, report, faults)
    tree = page.locator("[data-tree='0']")
    tree.scroll_into_view_if_needed()
    tree.locator("g.choice").first.wait_for()
    for choice in tree.locator("g.choice").all()[1:]:
        choice.dispatch_event("click")
        if tree.locator(".panel button", has_text="compare").count():
            break
    tree.locator(".panel button", has_text="compare").first.click()
    assert "Side by side" in tree.locator(".sides").inner_text()
    assert tree.locator(".sides tr.differs").count() >= 1
    tree.locator(".sides button", has_text="close").click()
    assert not tree.locator(".sides").is_visible()
    assert faults == []


def test_a_link_to_a_step_leads_to_it(browser: Any, report: Path, tmp_path: Path) -> None:
    with Run.open(make_run(tmp_path / "run", updates=1, tasks=1)) as run:
        name = run.trees()[-1].name
        step = next(node.id for node in run.nodes(name) if node.role == "assistant")
        (tmp_path / "tree.html").write_text(tree_html(run, name), encoding="utf-8")
    faults: list[str] = []
    page = opened(browser, tmp_path / "tree.html", faults)
    page.evaluate(f"location.hash = '#step-{step}'")
    page.locator(f".panel:has-text('{step[:12]}')").wait_for()
    assert faults == []


def test_without_a_script_everything_is_there(browser: Any, report: Path) -> None:
    page = opened(browser, report, [], java_script_enabled=False)
    assert page.locator("[data-tree='0'] svg").first.is_visible()
    page.locator(".steps summary").first.click()
    assert "the agent wrote" in page.locator(".steps details").first.inner_text()


def test_ten_thousand_steps_are_a_few_hundred_elements(browser: Any, tmp_path: Path) -> None:
    """What is far away is not in the document; from afar a path a colour stands for all."""
    with Run.create(tmp_path / "run", {}) as run:
        by = Provenance("m", "w", {}, 0)
        run.add(by)
        run.add_tree("t", {"id": "t"})
        start = make_node("t", None, 0, "user", "count")
        run.add(start)
        for i in range(500):
            node = start
            for depth in range(20):
                node = make_node("t", node.id, 1, "assistant", f"step {depth} of {i}", provenance=by.hash, index=i)
                run.add(node)
                node = make_node("t", node.id, 1, "user", f"seen {depth}")
                run.add(node)
            run.add(Score(node.id, "env", float(i % 2)))
        run.commit()
        html = tree_html(run, "t")
    (tmp_path / "tree.html").write_text(html, encoding="utf-8")
    faults: list[str] = []
    page = opened(browser, tmp_path / "tree.html", faults)
    tree = page.locator("[data-tree='0']")
    tree.scroll_into_view_if_needed()
    tree.locator("g.choice").first.wait_for()
    tree.get_by_role("button", name="open every branch").click()
    assert tree.locator("path.dots").count() >= 1
    assert page.evaluate("document.querySelectorAll('[data-tree] *').length") < 4000
    tree.locator("svg.map").focus()
    page.keyboard.press("Home")
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    assert "step 20" in tree.locator(".panel").inner_text()
    assert page.evaluate("document.querySelectorAll('[data-tree] *').length") < 8000
    assert faults == []


def test_tasks_are_filtered_and_sorted(browser: Any, report: Path) -> None:
    faults: list[str] = []
    page = opened(browser, report, faults)
    rows = page.locator("[data-tasks] tbody tr")
    every = rows.count()
    page.get_by_role("searchbox", name="filter tasks").fill("eval-before")
    assert 0 < rows.count() < every
    page.get_by_role("searchbox", name="filter tasks").fill("")
    page.get_by_role("combobox", name="outcome").select_option("mixed")
    assert 0 < rows.count() <= every
    page.get_by_role("combobox", name="outcome").select_option("all")
    page.locator("[data-tasks] th button", has_text="attempts").click()
    heads = page.locator("[data-tasks] th").all_inner_texts()
    at = 1 + next(i for i, head in enumerate(heads) if head.startswith("attempts"))
    counts = [int(text) for text in rows.locator(f"td:nth-child({at})").all_inner_texts()]
    assert counts == sorted(counts, reverse=True)
    assert faults == []


def test_a_page_follows_a_run_that_grows(browser: Any, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", updates=1, tasks=1)
    server, listener = open_server(guarded_pages(ServedRuns.of(folder)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        with Run.open(folder) as run:
            name = run.trees()[-1].name
            start = next(node for node in run.nodes(name) if node.role == "user")
        faults: list[str] = []
        page = opened(browser, f"http://127.0.0.1:{listener.getsockname()[1]}/run/run/tree/{name}", faults)
        page.locator("g.choice").nth(1).click()
        chosen = page.locator(".panel h4").first.inner_text()
        with page.expect_response(lambda answer: answer.url.endswith("/changed")):
            pass  # the state that is compared with
        with Run.open(folder, write=True) as run:
            reply = make_node(name, start.id, 1, "assistant", "a new way", index=99)
            end = make_node(name, reply.id, 1, "user", "well done")
            run.add(reply, end, Score(end.id, "env", 1.0))
        page.locator("g.choice", has_text="a new way").wait_for()
        assert page.locator(".panel h4").first.inner_text() == chosen
        assert faults == []
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
