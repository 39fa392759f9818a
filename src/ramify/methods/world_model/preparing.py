"""Preparing recorded turns: their classes, which are trained on, and rows for another trainer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.base.ids import canonical_json
from ramify.methods.world_model.algorithm import INFORMATIVE, KEEP, turn_class, turn_statistics
from ramify.methods.world_model.results import PreparedClass, PreparedTurns
from ramify.methods.world_model.settings import Mask
from ramify.methods.world_model.training import mask_of, opening_text, trained_characters
from ramify.methods.world_model.trajectories import EnvTrajectory, first_seen, read_trajectories
from ramify.trace.node import Annotation, Finding
from ramify.trace.sources import conclude

PREPARE = "world-model prepare"


def prepare(
    sources: Sequence[Path], mask: Mask, seed: int, out: Path | None, form: str | None = None, rows: str = "chats"
) -> PreparedTurns:
    """Classes and kept turns of all ``sources``; each run keeps its own at its observations. ``rows`` of ``out``: :data:`ROWS`.
    Raises UserError where nothing was recorded, or ``out`` cannot be written."""
    if rows not in ROWS:
        raise UserError(f"--rows is chats or turns, not '{rows}'")
    if out is not None and not out.parent.is_dir():
        raise UserError(f"cannot write {out}: there is no folder {out.parent}")
    turns, kept_by = Counter[str](), Counter[str]()
    everything: list[EnvTrajectory] = []
    each = [(source, read_trajectories(source, form)) for source in sources]
    chosen = iter(mask_of([one for _, own in each for one in own], mask, seed))
    fresh = iter(first_seen([one for _, own in each for one in own]))
    all_kept = []
    for source, own in each:
        kept = [next(chosen) for _ in own]
        new = [next(fresh) for _ in own]
        notes = []
        for one, keep, first in zip(own, kept, new, strict=True):
            for turn, wanted, seen in zip(one.turns, keep, first, strict=True):
                if not seen:
                    continue
                found = turn_statistics(turn.action, turn.observation)
                kind = turn_class(found)
                turns[kind] += 1
                kept_by[kind] += wanted
                if turn.node:
                    value = {"class": kind, "kept": wanted, "overlap": found.overlap, "novelty": found.novelty}
                    notes.append(Annotation(turn.node, 0, "turn class", PREPARE, value))
        everything += own
        all_kept += kept
        conclude(source, PREPARE, [_finding(own)], notes)
    characters, kept_characters = trained_characters(everything, all_kept)
    if out is not None:
        made = (row for one, keep in zip(everything, all_kept, strict=True) for row in ROWS[rows](one, keep))
        write_whole(out, "".join(canonical_json(row) + "\n" for row in made))
    return PreparedTurns(
        trajectories=len(everything),
        turns=turns.total(),
        kept=kept_by.total(),
        share_of_text=kept_characters / max(1, characters),
        classes=tuple(
            PreparedClass(kind, turns[kind], kept_by[kind], KEEP[kind] if mask == "info" else 1.0) for kind in KEEP if turns[kind]
        ),
        mask=mask,
        out=None if out is None else str(out),
    )


def _finding(own: Sequence[EnvTrajectory]) -> Finding:
    kinds = Counter(turn_class(turn_statistics(t.action, t.observation)) for one in own for t in one.turns)
    informing = sum(kinds[kind] for kind in INFORMATIVE)
    share = informing / max(1, kinds.total())
    why = f"{informing} of {kinds.total()} turns say more than their action did"
    return Finding("informative turns", PREPARE, why, value=share, unit="share of turns", evidence=dict(kinds))


def _chat(one: EnvTrajectory, kept: Sequence[bool]) -> list[dict[str, Any]]:
    """A trajectory as one chat: user messages are actions, assistant messages observations, ``train`` says which count."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": opening_text(one)}]
    for turn, wanted in zip(one.turns, kept, strict=True):
        messages += [{"role": "user", "content": turn.action}, {"role": "assistant", "content": turn.whole, "train": wanted}]
    return [{"id": one.id, "task": one.task, "messages": messages}]


def _turns(one: EnvTrajectory, kept: Sequence[bool]) -> list[dict[str, Any]]:
    """Each kept turn as a row of its own, ``prompt`` and ``completion``, for a trainer without a mark at each message."""
    messages = [{"role": "system", "content": opening_text(one)}]
    rows = []
    for number, (turn, wanted) in enumerate(zip(one.turns, kept, strict=True), 1):
        messages.append({"role": "user", "content": turn.action})
        said = {"role": "assistant", "content": turn.whole}
        if wanted:
            rows.append({"id": f"{one.id}:{number}", "task": one.task, "prompt": list(messages), "completion": [said]})
        messages.append(said)
    return rows


ROWS: dict[str, Callable[[EnvTrajectory, Sequence[bool]], list[dict[str, Any]]]] = {"chats": _chat, "turns": _turns}
"""What another trainer is given: a chat a trajectory, or a prompt and completion a turn."""
