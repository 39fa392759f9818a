"""A study's folder of ``ramify crosscoder steer`` of version 0.1.0, read into a run:
``scores.jsonl``, which grew line by line, and ``study.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.methods.crosscoder.record import KIND, SCORES, keep_study
from ramify.methods.crosscoder.report import markdown
from ramify.trace.formats import Reader
from ramify.trace.jsonl import new_run
from ramify.trace.lines import at_place, field, read_json, read_lines

LEFT = "replies were not kept, so there are scores by prompt and budget and no trees"
_ARTIFACTS = {
    "states.json": "states, which `ramify crosscoder train` reads",
    "dictionary.json": "a dictionary, which `ramify crosscoder steer` reads",
}


def import_study(path: Path, folder: Path) -> int:
    """Make a run of a study's folder, or of a file in one; it continues as one. Returns how many changes were scored.

    Raises UserError naming file and line of what is no such study,
    and on captured states and dictionaries, which are read as they are.
    """
    for name, what in _ARTIFACTS.items():
        if (path / name).is_file():
            raise UserError(f"{path} holds {what} as it is: there is nothing to import")
    files = path if path.is_dir() else path.parent
    scores, found = files / "scores.jsonl", files / "study.json"
    if not scores.is_file() and not found.is_file():
        raise UserError(f"{path} holds no study: neither {scores.name} nor {found.name} is there")
    study = _study(found) if found.is_file() else None
    about = {} if study is None else dict(study["about"]["options"])
    rows = list(read_lines(scores, ended=True)) if scores.is_file() else []
    with new_run(folder, {**about, "imported": {"form": "crosscoder", "file": path.name, "left": LEFT}}, KIND) as run:
        for number, row in rows:
            where = f"{scores}:{number}"
            for name in ("key", "place", "change"):
                field(row, name, str, where)
            scored = field(row, "scores", list, where)
            if not scored or not all(isinstance(one, list) and all(type(x) in (int, float) for x in one) for one in scored):
                raise UserError(f"{where}: 'scores' must hold a list of numbers for each prompt")
            with at_place(where):
                run.log(SCORES, row.pop("key"), row)
        if study is not None:
            with at_place(str(found)):
                keep_study(run, study)
    return len(rows)


def _study(file: Path) -> dict[str, Any]:
    """What a study found. Raises UserError on one that no report can be made of."""
    found: dict[str, Any] = read_json(file, dict)
    with at_place(str(file)):
        markdown(found)
    return found


register("reader", "crosscoder")(
    Reader(
        "crosscoder",
        "A study's folder that `ramify crosscoder steer` of version 0.1.0 wrote: scores under each change, and what came of "
        "them.",
        lambda path, first: (
            any((path / name).is_file() for name in ("scores.jsonl", *_ARTIFACTS))
            or (
                first is not None
                and any(names <= first.keys() for names in ({"place", "change", "scores"}, {"search", "confirmed"}))
            )
        ),
        import_study,
    )
)
