"""Hostile texts stay texts: read by a parser in the default suite, opened in a real browser by the slow test."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from web_hostile import PAYLOADS, all_in_one
from web_sample import make_run

from ramify.base import codec
from ramify.cli.main import main
from ramify.jobs.why.answer import Why
from ramify.jobs.why.records import Chance, StepChance
from ramify.render.result import Folded, Section, table, to_data
from ramify.trace.db import Run
from ramify.trace.node import Finding, KeptResult
from ramify.web.pages import message_html, node_html, report_html, script, tree_html, trees_html
from ramify.web.place import home_html, runs_html, station_html, words_html
from ramify.web.server import ServedRuns, guarded_pages, open_server
from ramify.web.shelf import Shelf
from ramify.web.way import STATIONS, nav_of

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run"]  # fmt: skip
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "main", "nav", "a", "header", "section", "h1", "h2", "h3", "h4", "p"),
    *("div", "span", "pre", "figure", "details", "summary", "table", "thead", "tbody", "tr", "th", "td"),
    *("ol", "li", "strong", "svg", "desc", "g", "path", "rect", "circle", "text", "code"),
}
FOREIGN = "script:not([type='application/json']):not(:last-of-type), iframe, img, object, embed, form, base, link"
"""What no page holds but for its own script, which comes last."""
VIEWS = ({"java_script_enabled": False}, {"bypass_csp": True}, {})
"""Without scripts; with them, where the escaping alone must hold; as people open it."""


class Inert(HTMLParser):
    """Collects what could act: unknown elements, event attributes, links that leave the page, inline styles."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.words = ""
        self.scripts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self.scripts.append("")
            if attrs not in ([], [("type", "application/json"), ("id", "data")]):
                self.found.append(f"script {attrs}")
        elif tag not in ALLOWED:
            self.found.append(f"<{tag}>")
        for name, value in attrs:
            if name.startswith("on") or name in (
                "src",
                "srcset",
                "srcdoc",
                "style",
                "action",
                "formaction",
                "xlink:href",
                "data",
            ):
                self.found.append(f"{tag} {name}={value}")
            if name == "href" and not (value or "").startswith(("#step-", "#content", "/")):
                self.found.append(f"{tag} href={value}")
            if name == "href" and (value or "").startswith("//"):
                self.found.append(f"{tag} href={value}")
            if name == "http-equiv" and value != "Content-Security-Policy":
                self.found.append(f"{tag} http-equiv={value}")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and data.strip():
            self.scripts[-1] += data

    def handle_comment(self, data: str) -> None:
        self.found.append(f"<!--{data[:20]}")

    def unknown_decl(self, data: str) -> None:
        self.found.append(f"<![{data[:20]}")


def hostile_results(run: Run, twist: Callable[[str], str]) -> None:
    """What verbs store, with hostile texts wherever a text may stand: a whole answer, a damaged one, a method's findings."""
    name = run.trees()[0].name
    leaf = next(node.id for node in run.nodes(name) if node.role == "assistant")
    chance = Chance(0.25, (0.1, 0.5), 1, 4)
    steps = (StepChance(leaf, twist("go"), chance),)
    why = Why(
        name, leaf, False, "step", twist("Lost at `go`."), chance, chance, leaf, twist("go"), steps=steps, caveats=(twist("x"),)
    )
    for maker, evidence in (("why", codec.to_json(why)), ("why --context", {twist("x"): twist("y")}), (twist("m"), {})):
        run.conclude(maker, [Finding(twist("f"), maker, twist("why"), leaf, 0, twist("do"), 0.5, twist("u"), evidence)])
    sections = to_data(
        [Section.of(twist("t"), twist("`p`"), table((twist("h"),), [(twist("c"),)]), Folded(twist("f"), twist("g")))]
    )
    for maker in ("fix", "test", twist("other")):
        run.add(KeptResult(maker, {"caveats": [twist("x")]}, sections))
    run.commit()


def pages(folder: Path, twist: Callable[[str], str]) -> list[str]:
    name = f"run {twist('x')}".replace("/", "")[:200].encode()[:240].decode(errors="ignore").replace("\0", "")
    shelf = Shelf(folder)
    with Run.open(make_run(folder / name, updates=2, tasks=1, attempts=4, twist=twist), write=True) as run:
        hostile_results(run, twist)
        nav = nav_of(run, name, "record")
        name = run.trees()[0].name
        leaf = run.tree(name).leaves()[0].id
        return [
            report_html(run), report_html(run, nav), tree_html(run, name), trees_html(run, nav), node_html(run, leaf, nav),
            message_html(twist("x"), twist("y")), home_html(shelf), words_html(),
            runs_html(shelf, {"state": twist("x"), "page": twist("y")}),
            *(station_html(run, station, nav) for station in STATIONS),
        ]  # fmt: skip


def test_there_are_enough_payloads() -> None:
    assert len(set(PAYLOADS)) == len(PAYLOADS) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("third", [0, 1, 2])
def test_payloads_are_inert(tmp_path: Path, third: int) -> None:
    batch = PAYLOADS[third::3]
    for page in pages(tmp_path / "run", lambda text: text + " ".join(batch)):
        read = Inert(page)
        assert read.found == []
        assert len(read.scripts) in (1, 2)
        *data, own = read.scripts
        assert own.strip() == script().strip()
        for block in data:
            assert not set("<>&'") & set(block)
            assert json.loads(block)["trees"]
        assert [payload for payload in batch if set("<\"'") & set(payload) and payload in page] == []


def test_payloads_are_still_readable(tmp_path: Path) -> None:
    class Words(HTMLParser):
        words = ""

        def handle_data(self, data: str) -> None:
            self.words += data

    parser = Words(convert_charrefs=True)
    parser.feed(pages(tmp_path / "run", lambda text: text + "<img src=x onerror=alert(1)>{{ 7*7 }}&lt;")[0])
    assert "go kitchen<img src=x onerror=alert(1)>{{ 7*7 }}&lt;" in parser.words


def look_around(page: Any, explorer: bool) -> None:
    """Open what can be opened; where the script drew a tree: choose steps by click and key, and see what they show."""
    if explorer:
        tree = page.locator("[data-tree]").first
        tree.scroll_into_view_if_needed()
        tree.locator("g.choice").first.wait_for()
        for choice in tree.locator("g.choice").all()[1:4]:
            choice.dispatch_event("click")
            assert "alert(1)" in tree.locator(".panel").inner_text()
        tree.locator("svg.map").press("ArrowRight")
        for other in tree.locator(".panel button", has_text="compare").all()[:1]:
            other.click()
            assert "alert(1)" in tree.locator(".sides").inner_text()
    for summary in page.locator("summary:visible").all()[:12]:
        summary.click()
    for link in page.locator("svg a:visible").all()[:5]:
        link.click(force=True)
    page.wait_for_timeout(100)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_happens_in_a_real_browser(tmp_path: Path) -> None:
    if not shutil.which(CHROMIUM):
        pytest.skip(f"NOT CHECKED: no browser at {CHROMIUM}; the hostile pages were only read by a parser")
    from playwright.sync_api import sync_playwright

    dialogs: list[str] = []
    requests: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for number_of_view, view in enumerate(VIEWS):
            page = browser.new_context(**view).new_page()
            page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
            page.on("request", lambda request: requests.append(request.url))
            for number, html in enumerate(pages(tmp_path / f"run-{number_of_view}", all_in_one)):
                file = tmp_path / f"page-{number}-{number_of_view}.html"
                file.write_text(html, encoding="utf-8")
                page.goto(file.as_uri(), timeout=120_000)
                look_around(page, "java_script_enabled" not in view and 'data-tree="' in html)
                assert page.url.split("#")[0] == file.as_uri()
                assert page.locator(FOREIGN).count() == 0
        # The check itself must be able to fail: the same handlers see a page that does act.
        seen = len(requests)
        alive = browser.new_page()
        alive.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        with alive.expect_event("dialog", timeout=60_000):
            alive.set_content("<script>alert('alive')</script>")
        browser.close()
    assert dialogs == ["alive"]
    assert seen == len(requests)
    assert [url for url in requests if not url.startswith(f"file://{tmp_path}/page-")] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_happens_on_served_and_exported_pages(tmp_path: Path) -> None:
    """As a user gets them: from the server with its headers, and as the files that the verbs write."""
    if not shutil.which(CHROMIUM):
        pytest.skip(f"NOT CHECKED: no browser at {CHROMIUM}; the hostile pages were only read by a parser")
    from playwright.sync_api import sync_playwright

    run = make_run(tmp_path / "run", updates=2, tasks=1, attempts=4, twist=all_in_one)
    assert main(["export", str(run), str(tmp_path / "export.html")]) == 0
    assert main(["show", str(run), "--html", str(tmp_path / "show.html")]) == 0
    with Run.open(run, write=True) as opened:
        hostile_results(opened, all_in_one)
        name = opened.trees()[0].name
        node = opened.tree(name).leaves()[0].id
    server, listener = open_server(guarded_pages(ServedRuns(run.parent)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
    own = ("", "trees", f"tree/{quote(name)}", f"node/{node}", *STATIONS)
    urls = [f"{origin}/run/run/{path}" for path in own] + [f"{origin}/{path}" for path in ("runs", quote("".join(PAYLOADS[:20])))]
    urls += [(tmp_path / file).as_uri() for file in ("export.html", "show.html")]
    dialogs: list[str] = []
    requests: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        for url in urls:
            page.goto(url, timeout=120_000)
            assert "alert(1)" in page.locator("body").inner_text()
            look_around(page, page.locator("[data-tree]").count() > 0)
            assert page.locator(FOREIGN).count() == 0
        browser.close()
    server.should_exit = True
    thread.join(60)
    listener.close()
    assert dialogs == []
    assert [url for url in requests if url not in urls and not url.startswith(f"{origin}/")] == []
    assert set(urls) <= set(requests)
