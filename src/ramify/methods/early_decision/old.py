"""A study's folder that ramify 0.1.0 wrote, read into a run:
``study.json``, ``prompts.json``, rows that grew line by line, results of stages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.base.config import check
from ramify.base.errors import UserError
from ramify.base.ids import json_hash
from ramify.base.registry import register
from ramify.methods.early_decision.record import (
    CONTINUE,
    CONTINUED,
    CUT,
    KIND,
    OLD,
    OSCILLATE,
    STANCES,
    Study,
    StudyConfig,
    Written,
    counted,
    prompt_row,
)
from ramify.methods.early_decision.report import conclude, html, probe_verdict, valley_verdict
from ramify.trace.db import Record
from ramify.trace.formats import Reader
from ramify.trace.jsonl import new_run
from ramify.trace.lines import at_place, field, read_json, read_lines

_TRACE: dict[str, Any] = {"prompt": str, "mode": str, "sample": int, "thinking": list, "closed": str, "status": str}
_CONTINUED: dict[str, Any] = {
    "trace": str,
    "prompt": str,
    "way": str,
    "share": (int, float),
    "tokens": int,
    "status": str,
    "k": int,
    "n": int,
    "missing": int,
}
_STANCES: dict[str, Any] = {"prompt": str, "chunks": int, "loop": bool, "ratings": list, "stances": list, "turns": list}
_CUT: dict[str, Any] = {"trace": str, "chunk": int, "status": str, "k": int, "n": int}


def import_study(path: Path, folder: Path) -> int:
    """Make a run of a study's folder, or of the ``study.json`` in one.
    Returns how many traces it has; raises UserError on what is no such study."""
    files = path if path.is_dir() else path.parent
    begun = read_json(files / OLD if path.is_dir() else path, dict)
    prompts = read_json(files / "prompts.json", list)
    with at_place(str(files / "prompts.json")):
        rows = [prompt_row(one["id"], one["prompt_ids"], one["data"]) for one in prompts]
        hashed = json_hash(rows)
    with at_place(str(path)):
        config, source = check(StudyConfig, begun["config"]), dict(begun["source"])
    about = config.to_json() | {"imported": {"form": "early-decision", "file": path.name}}
    with new_run(folder, about, KIND, {**source, "prompts": hashed}) as run:
        study = Study(run)
        with at_place(str(files / "prompts.json")):
            study.add_prompts(rows)
        traces = [row for _, row in _lines(files / "traces.jsonl", _TRACE)]
        generated = all("answer_ids" in row for row in traces if "answer" in row)
        for number, row in enumerate(traces, 1):
            with at_place(f"{files / 'traces.jsonl'}:{number}"):
                study.add(row, Written(row["thinking"], 0, " ".join(map(str, row["thinking"])), generated=generated))
        _import_stages(study, files)
    return len(traces)


def _import_stages(study: Study, files: Path) -> None:
    for name, kind, fields in (("continue", CONTINUED, _CONTINUED), ("stances", STANCES, _STANCES), ("cuts", CUT, _CUT)):
        rows = study.rows(kind)
        for where, row in _lines(files / f"{name}.jsonl", fields):
            with at_place(where):
                trace = study.traces[row["key"] if kind == STANCES else row["trace"]]
                marks: list[Record] = []
                if kind == CONTINUED:
                    marks = study.mark(
                        trace, row["tokens"], f"potential {row['way']} at {row['share']:g}", CONTINUE, counted(row)
                    )
                if kind == CUT:
                    marks = study.mark(trace, _tokens(row["key"]), "potential cut", OSCILLATE, counted(row))
                if kind == STANCES and not all(len(turn) == 3 and all(type(at) is int for at in turn) for turn in row["turns"]):
                    raise UserError("'turns' must be triples of integers")
                rows.add(row["key"], {name: value for name, value in row.items() if name != "key"}, *marks)
    if (files / "oscillate.json").is_file():
        with at_place(str(files / "oscillate.json")):
            study.settle(dict(read_json(files / "oscillate.json", dict)["config"]))
    for stage, kind_of, verdict in (("probe", list, probe_verdict), ("valley", dict, valley_verdict)):
        if (files / f"{stage}.json").is_file():
            with at_place(str(files / f"{stage}.json")):
                found = read_json(files / f"{stage}.json", kind_of)
                study.conclude(stage, verdict(found)["verdict"], found, {})
    with at_place(str(files)):  # what no report can be made of is refused here
        try:
            html(conclude(study, {}))
        except (LookupError, ArithmeticError, StopIteration) as error:
            raise UserError(f"its rows do not fit each other ({type(error).__name__}: {error})") from error


def _tokens(key: str) -> int:
    """How many tokens of the thinking a cut keeps, which its key TRACE|TOKENS|ANSWERS says. Raises ValueError on another key."""
    _, tokens, _ = key.rsplit("|", 2)
    return int(tokens)


def _lines(file: Path, fields: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Rows of a file that grew line by line, each with its place; none where there is no file.
    A last line that a kill cut off is left out."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for number, row in read_lines(file, ended=True) if file.is_file() else ():
        where = f"{file}:{number}"
        for name, kinds in {"key": str, **fields}.items():
            field(row, name, kinds, where)
        if row["key"] in found:
            raise UserError(f"{where}: 'key' must be a text that no row before has")
        found[row["key"]] = where, row
    return list(found.values())


register("reader", "early-decision")(
    Reader(
        "early-decision",
        "A study's folder, or its study.json, that `ramify early-decision run` of version 0.1.0 wrote.",
        lambda path, first: (
            ((path / OLD).is_file() and not (path / "scores.jsonl").exists())  # that is a study of the crosscoder
            or (first is not None and {"config", "source"} <= first.keys())
        ),
        import_study,
    )
)
