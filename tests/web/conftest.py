"""A browser for the tests that use the pages as a person does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from test_hostile import CHROMIUM, FLAGS


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not shutil.which(CHROMIUM):
        pytest.skip(f"NOT CHECKED: no browser at {CHROMIUM}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()
