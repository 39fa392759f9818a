"""A case's folder of ramify 0.1.0: its run, and the results next to it as JSON files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.methods.forensics import record
from ramify.methods.forensics.case import FILE, load_case
from ramify.methods.forensics.experiment import Control, result_from_json
from ramify.methods.forensics.report import as_text
from ramify.trace.connect import holds_run
from ramify.trace.db import Run
from ramify.trace.formats import Reader
from ramify.trace.jsonl import copy_records, new_run
from ramify.trace.lines import at_place, read_json

_MAKERS = {"baseline": record.BASELINE, "results": record.TESTS, "traces": record.SENTENCES, "probes": record.QUESTIONS}


def import_case(path: Path, folder: Path) -> int:
    """Make a run of a case's folder, or of the ``case.toml`` in one:
    the case's own with its results as findings, and the ``case.toml`` in it.

    Returns how many results there were. Raises UserError where no run of the case was played,
    naming file and field on what is no result.
    """
    files = path if path.is_dir() else path.parent
    config = load_case(files)
    if not holds_run(files / "run"):
        raise UserError(
            f"{files} has no run yet, so there is nothing to import: `ramify forensics run {files}` plays it as it is"
        )
    old = record.old_files(files)
    contents = {file: read_json(file, dict) for file in old}
    left = []
    if any(file.parent.name == "traces" for file in old):
        left.append("what each fork at a sentence came to was not kept, so sentences have their scores and no curve")
    if any(file.parent.name == "probes" for file in old):
        left.append("of the answers to a question five are kept and the rest are counted")
    about = {"imported": {"form": "forensics", "file": path.name} | ({"left": "; ".join(left)} if left else {})}
    with Run.open(files / "run") as source, new_run(folder, {**source.config, **about}, record.KIND, source.parts) as run:
        copy_records(source, run)
        with run.transaction():
            for file, one in contents.items():
                with at_place(str(file)):
                    _keep(run, file, one)
            with at_place(str(files)):  # what no report can be made of is refused here
                record.keep_tests(run)
                as_text(record.report(run, config))
        shutil.copyfile(files / FILE, run.folder / FILE)
    return len(old)


def _keep(run: Run, file: Path, stored: dict[str, Any]) -> None:
    if file.name == "controls.json":
        record.keep_controls(run, {test: Control(**one) for test, one in stored.items()})
        return
    if file.parent.name == "traces":
        stored["node"] = record.reply_of(run, stored["leaf"], stored["turn"]).id
    if file.parent.name == "results":
        result_from_json(stored)
    record.keep(run, _MAKERS.get(file.parent.name) or _MAKERS[file.stem], stored)


register("reader", "forensics")(
    Reader(
        "forensics",
        "A case's folder, or its case.toml, with results of `ramify forensics` of version 0.1.0 in JSON files.",
        lambda path, first: (path / FILE).is_file() or path.name == FILE,
        import_case,
    )
)
