"""Make the README's picture, the page of one tree as a browser shows it:
python docs/page_picture.py RUN TREE (needs Debian's chromium).

The run is made as docs/tutorials/a-coding-agent.md says, with `ramify why`; TREE is mini. Its model draws from chance, so a run
that is made again has other numbers, which README, docs/index.md and the tutorial say, too.
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from ramify.trace.db import Run
from ramify.web.pages import tree_html

CHROMIUM = "/usr/bin/chromium"
IMAGES = Path(__file__).with_name("images")


def main() -> None:
    """Write the picture, light and dark."""
    with Run.open(sys.argv[1]) as run:
        html = tree_html(run, sys.argv[2])
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "tree.html"
        file.write_text(html, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            page = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme).new_page()
            page.goto(file.as_uri())
            page.locator("g.choice[aria-selected=true]").wait_for()
            page.screenshot(path=IMAGES / f"page-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
