"""The page for people, done in a real browser: consent, keys, times, a file that the loop imports; nothing is requested."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ramify.cli.main import main
from ramify.methods.theory_loop.domain import Design, hilbig
from ramify.methods.theory_loop.people import data_of, read_people, task_page

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run"]  # fmt: skip
TINY = Design((0.9, 0.6), ((0, 1), (1, 1), (0, 0)), ((1, 0), (0, 0), (1, 1)), 1)


def test_the_page_holds_what_it_says_and_refers_to_nothing() -> None:
    page = task_page(hilbig(), "A <b>title</b>", "Read </script><script>alert(1)</script> this", "me@example.org")
    assert "default-src 'none'" in page
    assert page.count("<script>") == 1
    assert "</script><script>alert" not in page
    assert "unsafe-inline" not in page
    assert "from 0 (worst) to 5 (best)" in task_page(Design((0.9, 0.6), ((0, 5),), ((5, 0),), 5))
    assert not re.findall(r"""(?:src|href)\s*=\s*["']|https?:|url\(|@import|fetch\(|XMLHttp|WebSocket|sendBeacon""", page)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_person_takes_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A person who tallies: F and J by what stands left and right;
    the page's file goes into the loop, and the flag of a driven browser is seen."""
    if not shutil.which(CHROMIUM):
        pytest.skip(f"NOT CHECKED: no browser at {CHROMIUM}; the page was only read")
    from playwright.sync_api import sync_playwright

    words = "--rounds 1 --iterations 1 --people 2 --runs 10 --searched 3 --participants web --json".split()
    assert main(["theory-loop", "run", "--out", str(tmp_path / "run"), *words]) == 0
    hostile = tmp_path / "consent.txt"
    hostile.write_text("We study </script><script>alert(1)</script> choices & 'keys'.\n\nSecond paragraph.")
    assert (
        main(
            [
                "theory-loop",
                "data",
                "export",
                str(tmp_path / "run"),
                "--out",
                str(tmp_path / "task.html"),
                "--consent",
                str(hostile),
            ]
        )
        == 0
    )
    seen: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        saved = tmp_path / "choices.csv"
        for name, driven in (("ann", False), ("bot", True)):
            context = browser.new_context(accept_downloads=True, offline=True)
            if not driven:  # a person's browser says that nobody drives it
                context.add_init_script("Object.defineProperty(Navigator.prototype, 'webdriver', {get: () => false})")
            page = context.new_page()
            page.on("request", lambda request: seen.append(request.url))
            page.on("console", lambda message: seen.append(message.text))
            page.on("pageerror", lambda error: seen.append(str(error)))
            saved = tmp_path / f"{name}.csv"
            take_part(page, tmp_path / "task.html", name, saved)
            context.close()
        browser.close()
    assert set(seen) <= {(tmp_path / "task.html").as_uri()} | {url for url in seen if url.startswith("blob:")}
    rows = list(csv.DictReader((tmp_path / "ann.csv").read_text().splitlines()))
    assert len(rows) == 96
    assert {row["subject_id"] for row in rows} == {"ann"}
    assert {row["left"] for row in rows} == {"a", "b"}
    for row in rows:
        a, b = (sum(json.loads(row[f"option_{side}_ratings"])) for side in "ab")
        assert a == b or int(row["response"]) == int(b > a)  # what was pressed is what was chosen, on whichever side it stood
        assert float(row["rt_ms"]) >= 0
        assert row["consent"].startswith("20")
    capsys.readouterr()
    assert (
        main(
            [
                "theory-loop",
                "data",
                "import",
                str(tmp_path / "run"),
                str(tmp_path / "ann.csv"),
                str(tmp_path / "bot.csv"),
                "--json",
            ]
        )
        == 0
    )
    found = {one["subject"]: one for one in json.loads(capsys.readouterr().out.splitlines()[-1])["people"]}
    assert found["bot"]["bot"]
    assert "program" in found["bot"]["dropped"]
    assert not found["ann"]["bot"]
    assert "ms a choice" in found["ann"]["dropped"]  # a test does not take 1.2 s a choice, and the filter says so


def take_part(page: Any, file: Path, name: str, saved: Path) -> None:
    page.goto(file.as_uri())
    assert page.locator("#start").is_disabled()  # nothing without consent
    assert "</script><script>alert(1)</script> choices & 'keys'.\n\nSecond" in page.locator("#consent").inner_text()
    page.keyboard.press("f")
    assert page.locator("#task").is_hidden()
    page.fill("#subject", name)
    page.check("#agree")
    page.click("#start")
    assert "rated both with 1 (good) or 0 (bad)." in page.locator("#explain").inner_text()
    page.click("#begin")
    for trial in range(96):
        page.locator(f"#task[data-trial='{trial}'][data-ready='yes']").wait_for()
        cells = [
            [int(cell) for cell in column]
            for column in zip(*(row.locator("td").all_inner_texts() for row in page.locator("#cues tr").all()), strict=True)
        ]
        page.keyboard.press("q")  # other keys do nothing
        page.keyboard.press("f" if sum(cells[0]) >= sum(cells[1]) else "j")
    warned: list[str] = []
    page.on("dialog", lambda dialog: (warned.append(dialog.type), dialog.dismiss()))
    page.close(run_before_unload=True)  # what was not saved is not lost by closing the page
    with page.expect_download() as download:
        page.click("#save")
    assert warned == ["beforeunload"]
    download.value.save_as(saved)
    assert download.value.suggested_filename == f"choices-{name}.csv"


def test_rows_without_times_or_keys_are_read_and_not_filtered_on(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    order = TINY.orders(2, 0)
    rows = [
        f's{s},"{json.dumps(TINY.a[p])}","{json.dumps(TINY.b[p])}",{t % 3 // 2}'
        for s in range(2)
        for t, p in enumerate(order[s].tolist())
    ]
    path.write_text("\ufeffsubject_id,option_a_ratings,option_b_ratings,response\n" + "\n".join(rows) + "\n")
    data = data_of(read_people(path, TINY), TINY)
    assert data.order.tolist() == order.tolist()
    assert data.response[0].tolist() == [t % 3 // 2 for t in range(96)]
    assert data.extra.reports[0].mean_rt_ms is None
