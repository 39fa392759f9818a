"""The committed script is the one that its sources make, and it sets text, never markup."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from ramify.web.pages import script

PAGE = Path(__file__).resolve().parents[2] / "page"


def test_the_bundle_is_as_new_as_its_sources() -> None:
    """Without Node: the first line names the hash of all that the bundle was made from. CI makes it again (.ci/page)."""
    names = ["build.mjs", "package-lock.json", "package.json", *(f"src/{file.name}" for file in (PAGE / "src").iterdir())]
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(name.encode() + b"\0" + (PAGE / name).read_bytes() + b"\0")
    assert digest.hexdigest() in script().splitlines()[0], "run `npm ci && npm run build` in page/"


def test_the_sources_make_no_markup_and_run_no_text() -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new "
        r"Function|\.html\(|DOMParser|srcdoc|createContextualFragment"
    )
    for file in (PAGE / "src").iterdir():
        assert re.findall(forbidden, file.read_text()) == [], file.name


def test_the_script_fits_its_element_and_names_no_host() -> None:
    assert "</" not in script()
    assert "<!--" not in script()
    assert set(re.findall(r"https?://[^\s\"'`]+", script())) <= {
        f"http://www.w3.org/{name}" for name in ("2000/svg", "1999/xhtml", "1999/xlink", "2000/xmlns/", "XML/1998/namespace")
    }


def test_the_lockfile_names_versions_and_hashes_alone() -> None:
    packages = json.loads((PAGE / "package-lock.json").read_text())["packages"]
    assert all("resolved" not in package for package in packages.values())
    assert all("integrity" in package for name, package in packages.items() if name)


def test_the_licence_of_every_bundled_package_is_with_it() -> None:
    packages = json.loads((PAGE / "package-lock.json").read_text())["packages"]
    bundled = {name.removeprefix("node_modules/") for name, package in packages.items() if name and not package.get("dev")}
    text = (PAGE.parent / "src" / "ramify" / "web" / "static" / "page.LICENSE.txt").read_text()
    assert bundled
    assert [name for name in bundled if name not in text] == []
