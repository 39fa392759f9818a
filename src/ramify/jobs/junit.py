"""What a CI system reads of a test: JUnit's XML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from ramify.render.text import sanitize


@dataclass(frozen=True, slots=True)
class JunitCase:
    """One test: ``failure`` says why it failed, ``skipped`` why nothing could be said."""

    name: str
    failure: str = ""
    skipped: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


def junit_of(suite: str, cases: Sequence[JunitCase]) -> str:
    """The XML of one suite."""
    failed, skipped = sum(bool(case.failure) for case in cases), sum(bool(case.skipped) for case in cases)
    root = Element("testsuites", name="ramify")
    counts = {"tests": str(len(cases)), "failures": str(failed), "errors": "0", "skipped": str(skipped)}
    listed = SubElement(root, "testsuite", {"name": sanitize(suite, flatten=True), **counts})
    for case in cases:
        entry = SubElement(listed, "testcase", classname="ramify test", name=sanitize(case.name, flatten=True))
        if case.properties:
            about = SubElement(entry, "properties")
            for name, value in case.properties.items():
                SubElement(about, "property", name=name, value=sanitize(value, flatten=True))
        for kind, why in (("failure", case.failure), ("skipped", case.skipped)):
            if why:
                SubElement(entry, kind, message=sanitize(why.splitlines()[0], flatten=True)).text = sanitize(why)
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"
