"""``ramify fix``: which edit of what the agent is shown makes it better, beyond luck and beyond one task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base.errors import UserError
from ramify.base.files import read_small, write_whole
from ramify.base.progress import Progress
from ramify.cli.fork import read_edit
from ramify.env.tools import read_effects
from ramify.kit import Effects, ForkEnv, ForkModel, RunArgument, Trust, Verbs, argument, find_run, option
from ramify.render.result import Result

if TYPE_CHECKING:
    from ramify.jobs.fix.answer import Fixes
    from ramify.jobs.fix.candidates import EditedFile
    from ramify.render.result import Cell
    from ramify.rollout.attempts import Attempt
    from ramify.rollout.stored import WhoPlays
    from ramify.trace.db import Run

app = Verbs("fix")
KEEPS = (".patch", ".diff", ".json")
"""Files that --write replaces where they are there."""


@dataclass(frozen=True)
class TriedOptions:
    """What is tried."""

    edit: Annotated[
        list[Path] | None,
        option(
            "--try",
            metavar="FILE",
            help="JSON file with a candidate, an edit rule, insert or tool as `ramify fork` takes it; with --file its new text, "
            "or a unified diff of it.",
        ),
    ] = None
    rule: Annotated[list[str] | None, option(metavar="TEXT", help="A candidate: this rule, added to the system message.")] = None
    file: Annotated[
        str | None,
        option(
            metavar="FILE",
            help="The file that candidates are texts of (SKILL.md, CLAUDE.md, AGENTS.md), in the repository of a recorded agent.",
        ),
    ] = None
    propose: Annotated[
        str | None,
        option(
            metavar="MODEL",
            help="Candidates that this model proposes, 3 at most; or `cause`: three plain ones from what `ramify why --context` "
            "named.",
        ),
    ] = None

    def candidates(self, run: Run, who: WhoPlays) -> tuple[dict[str, Any], EditedFile | None]:
        """Those that are given, unchecked, and the file they are texts of. Raises UserError."""
        from ramify.jobs.fix.candidates import EditedFile

        if any(not text.strip() for text in self.rule or []):
            raise UserError("--rule needs the text of a rule")
        given = {path.name: read_edit(path) if self.file is None else _read_text(path) for path in self.edit or []}
        if len(given) < len(self.edit or []):
            raise UserError("--try: two files have the same name, which would name two rows of the table")
        file = None if self.file is None else EditedFile(run, who, self.file)
        tried = given if file is None else dict(file.tried(given))
        return tried | {f"rule {i}": {"rule": {"add": text}} for i, text in enumerate(self.rule or [], 1)}, file

    def proposed(self, run: Run, where: str, who: WhoPlays) -> tuple[dict[str, Any], int, int]:
        """Those that are given and those that are proposed, how many were proposed, and how many of these could not be read or
        were given already. Raises as :meth:`candidates`."""
        from ramify.jobs.fix.ask import place_of
        from ramify.jobs.fix.propose import proposals

        edits, file = self.candidates(run, who)
        if self.propose is None:
            return edits, 0, 0
        proposed = proposals(run, place_of(run, where), self.propose, file)
        fresh = {name: edit for name, edit in proposed.edits.items() if edit not in edits.values()}
        if not edits and not fresh:
            raise UserError(f"--propose {self.propose.partition('@')[0]}: none of what it proposed could be read as an edit")
        return {**edits, **fresh}, proposed.meant, proposed.meant - len(fresh)


def plan(
    run: str, where: str, tried: TriedOptions, n: int, tasks: int, attempts: int | None, target: str | None,
    scorer: str | None, model: str | None, env: str | None, trust: bool,
) -> Mapping[str, Cell]:  # fmt: skip
    """What it takes at most."""
    from ramify.jobs.fix.ask import FixQuestion, place_of, wanted
    from ramify.jobs.fix.candidates import check_candidates, check_player
    from ramify.jobs.fix.propose import MOST
    from ramify.rollout.stored import WhoPlays
    from ramify.trace.db import Run
    from ramify.trace.outcome import settled

    who = WhoPlays(model, env, trust)
    wanted(target)
    with Run.open(find_run(run)) as opened:
        edits, file = tried.candidates(opened, who)
        if tried.propose is not None:
            place_of(opened, where)
            edits |= {f"proposal {i}": {"rule" if file is None else "file": i} for i in range(MOST)}
        else:
            edits = dict(check_candidates(edits))
        check_player(opened, who)
        others, most = FixQuestion(n, tasks, attempts).needs(edits, opened, settled(opened, scorer), where)
    estimate: dict[str, Cell] = {"candidates": len(edits), "tasks": len(others), "attempts": most}
    return estimate | ({"the file": f"{file.path} is new: the repository has none"} if file is not None and not file.old else {})


@app.study(plan=plan, unit="attempts at most", itself=True, run="run")
def fix(
    run: RunArgument,
    where: Annotated[
        str, argument("NODE", help="The step to fix: a node's id or its first digits. Default: the step that `ramify why` named.")
    ] = "",
    target: Annotated[
        str | None,
        option(
            metavar="TARGET",
            help="What counts instead of success: calls:TOOL or says:REGEX in a reply, or a judge of it; declared before any "
            "sample.",
        ),
    ] = None,
    n: Annotated[int, option(help="Continuations of the step for each candidate, and without one.", min=2)] = 16,
    tasks: Annotated[int, option(help="Other tasks of the run to confirm at.", min=1)] = 8,
    attempts: Annotated[
        int | None,
        option(
            help="Whole attempts at each of them at most, with and without the edit each; default: 8, and 32 over all where "
            "tasks are few.",
            min=1,
        ),
    ] = None,
    level: Annotated[float, option(help="Chance of accepting any edit that changes nothing.", min=1e-9, max=0.5)] = 0.05,
    write: Annotated[
        Path | None,
        option(
            metavar="FILE",
            help="Write the accepted edit here: of a file a patch, of another one JSON as `ramify fork --edit` takes it; in a "
            "folder as fix.patch or fix.json.",
        ),
    ] = None,
    scorer: Annotated[str | None, option(metavar="NAME", help="Scorer that decides which attempts succeeded.")] = None,
    model: ForkModel = None,
    env: ForkEnv = None,
    effect: Effects = None,
    trust: Trust = False,
    *,
    tried: TriedOptions,
    bar: Progress,
) -> Result:
    """Try edits of what the agent is shown: at the step that lost an attempt, then in whole attempts at other tasks.

    An edit is accepted where attempts with it succeed more often than as many unedited ones that begin at the same place, beyond
    chance over all candidates. Nothing is written without --write.
    """
    from ramify.jobs.fix.ask import FixQuestion, wanted
    from ramify.jobs.fix.ask import fix as fixed
    from ramify.jobs.fix.candidates import check_candidates
    from ramify.jobs.judged import judge
    from ramify.rollout.attempts import Success
    from ramify.rollout.stored import WhoPlays
    from ramify.trace.db import Run
    from ramify.trace.outcome import settled

    _check_writable(write)
    question, success = FixQuestion(n, tasks, attempts, level, target), Success()
    who = WhoPlays(model, env, trust, read_effects(effect or []))
    wanted(target)

    def on_attempt(attempt: Attempt) -> None:
        success.add(attempt)
        bar.at(success.ended, success.note)

    with Run.open(find_run(run), write=True) as opened:
        edits, meant, unread = tried.proposed(opened, where, who)
        candidates = check_candidates(edits)
        judge(opened, who)
        deciding = settled(opened, scorer)
        bar.begin(question.needs(candidates, opened, deciding, where)[1])
        result = fixed(opened, candidates, deciding, where, question, who, on_attempt, (meant, unread))
    return result if write is None or result.accepted is None else replace(result, wrote=_write(write, result, result.accepted))


def _check_writable(path: Path | None) -> None:
    """Raises UserError where no edit is to be kept."""
    if path is not None and not path.is_dir() and not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")
    if path is not None and path.is_file() and path.suffix not in KEEPS:
        raise UserError(f"--write keeps the edit as a patch or as JSON, not as {path} is: name a file of it, or a folder")


def _write(path: Path, result: Fixes, name: str) -> str:
    """Write the accepted edit, and say where."""
    edit = dict(result.edits[name])
    if path.is_dir():
        path /= "fix.patch" if "file" in edit else "fix.json"
    write_whole(path, result.diffs[name] if "file" in edit else json.dumps(edit, ensure_ascii=False, indent=1) + "\n")
    return str(path)


def _read_text(path: Path) -> str:
    try:
        return read_small(path, "the text").decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"cannot read {path}: it is not UTF-8 text") from None
