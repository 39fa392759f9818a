"""Make the README's picture, the page of one tree as a browser shows it, and those of all runs:
python docs/page_picture.py RUN TREE (needs Debian's chromium).

The run is made as docs/tutorials/a-coding-agent.md says, with `ramify why`; TREE is mini. Its model draws from chance, so a run
made again has other numbers, which README, docs/index.md and the tutorial say, too. The pages of all runs show the folder that
RUN lies in.
"""

import os
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from ramify.trace.db import Run
from ramify.web.pages import tree_html
from ramify.web.place import home_html, station_html
from ramify.web.shelf import Shelf
from ramify.web.way import nav_of

CHROMIUM = "/usr/bin/chromium"
IMAGES = Path(__file__).resolve().with_name("images")


def main() -> None:
    """Write the pictures; the one of the tree light and dark."""
    folder = Path(sys.argv[1]).resolve()
    os.chdir(folder.parents[1])  # names are shown from there
    with Run.open(folder) as run:
        tree = tree_html(run, sys.argv[2])
        why = station_html(run, "why", nav_of(run, folder.name, "why"))
    shelf = Shelf(folder.parent)
    shelf.runs(60)
    shots = [(f"page-{scheme}", tree, scheme, 800) for scheme in ("light", "dark")]
    shots += [("ui-home", home_html(shelf), "light", 640), ("ui-why", why, "dark", 700)]
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        file = Path(scratch) / "page.html"
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for name, html, scheme, height in shots:
            file.write_text(html, encoding="utf-8")
            page = browser.new_context(viewport={"width": 1280, "height": height}, color_scheme=scheme).new_page()
            page.goto(file.as_uri())
            if name.startswith("page"):
                page.locator("g.choice[aria-selected=true]").wait_for()
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
