"""The pages of all runs in a real browser: by keyboard, without scripts, on a narrow screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from raw_client import serving
from test_hostile import hostile_results
from web_sample import make_run, same

from ramify.trace.db import Run
from ramify.web.server import ServedRuns, guarded_pages
from ramify.web.way import STATIONS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PATHS = ("/", "/runs", "/words", "/run/b/", "/run/b/trees", *(f"/run/{run}/{name}" for run in "ab" for name in STATIONS))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("browsed") / "runs"
    for name in ("a", "b", "a run with a long name " + "x" * 60):
        make_run(folder / name, updates=1, tasks=1)
    with Run.open(folder / "b", write=True) as run:
        hostile_results(run, same)
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.sqlite").write_bytes(b"no run " * 900)
    with serving(guarded_pages(ServedRuns(Path(folder)))) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("scripts", [True, False])
def test_every_page_reads_and_fits_a_narrow_screen(browser: Any, address: str, scripts: bool) -> None:
    faults: list[str] = []
    for width in (390, 1280):
        page = browser.new_context(viewport={"width": width, "height": 800}, java_script_enabled=scripts).new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        for path in PATHS:
            page.goto(address + path)
            assert len(page.locator("main").inner_text()) > 20, path
            assert page.locator("nav[aria-label='all runs'] a").count() == 4
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    assert faults == []


def test_keys_lead_through_the_list(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}/runs?sort=run")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    runs = page.locator("[data-runs] tbody tr")
    assert runs.count() == 4
    runs.first.locator("a").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.textContent").startswith("a run with")
    page.get_by_role("searchbox", name="filter runs").fill("damaged")
    assert page.locator("[data-runs] tbody tr:visible").count() == 1
    page.get_by_role("searchbox", name="filter runs").fill("")
    page.get_by_role("link", name="success").click()
    assert page.locator("th[aria-sort]").inner_text() == "success"


def test_the_way_leads_from_a_run_to_what_was_found(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    page.get_by_role("link", name="b", exact=True).first.click()
    way = page.locator("nav[aria-label='this run']")
    way.get_by_role("link", name="why 1").click()
    assert "Lost at go" in page.locator("main").inner_text()
    page.get_by_role("link", name="The step in its tree").click()
    page.locator("g.choice[aria-selected=true]").wait_for()
    way.get_by_role("link", name="cause").click()
    assert way.locator("[aria-current]").inner_text().startswith("cause")
