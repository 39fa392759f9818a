"""What long verbs took on this machine: kept in ramify's cache after each call, so that a dry run can say seconds without loading
or sampling anything."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ramify.base import codec
from ramify.base.errors import RamifyError
from ramify.base.files import cache_folder, write_whole
from ramify.base.progress import REPLIES, Progress
from ramify.base.words import plural

TOKENS = ("tokens", "tokens to sample", "tokens to sample, at most")
"""What estimates call the tokens that are sampled at most."""
RUN = "run "
"""Begins what stands for a model that only its run names."""
LEAST = 1.0
"""Seconds of a call that tell anything."""


@dataclass(frozen=True)
class VerbPace:
    """What one call took."""

    verb: str
    model: str
    """As it was named; of a verb that names none the run (:data:`RUN`), else empty."""
    seconds: float
    units: float
    """Done in it, of what the verb counts its progress in."""
    tokens: float
    """Sampled in it, by whatever model."""


def _file() -> Path:
    return cache_folder() / "paces.json"


def known() -> list[VerbPace]:
    """The last call of each verb with each model, the latest last; nothing where the file cannot be read."""
    with suppress(OSError, ValueError, RamifyError):
        return codec.from_json(list[VerbPace], json.loads(_file().read_text(encoding="utf-8")))
    return []


class _Counted(Progress):
    """A progress that also counts what was done, in the verb's unit."""

    def __init__(self, bar: Progress, unit: str) -> None:
        self.bar, self.wanted, self.unit = bar, unit, unit
        self.units = self.last = 0.0

    def begin(self, total: float, done: float = 0, phase: str = "", unit: str = "") -> None:
        self.unit, self.last = unit or self.unit, done
        self.bar.begin(total, done, phase, unit)

    def at(self, done: float, note: str = "", phase: str = "") -> None:
        if self.unit == self.wanted:
            self.units += max(0.0, done - self.last)
        self.last = done
        self.bar.at(done, note, phase)


@contextmanager
def measured(verb: str, model: str, bar: Progress, unit: str) -> Iterator[Progress]:
    """The progress of a call of ``verb``; what was done inside is kept, also where it was interrupted."""
    counted, begun, sampled = _Counted(bar, unit), time.monotonic(), REPLIES.sampled
    try:
        yield counted
    finally:
        latest = VerbPace(verb, model, time.monotonic() - begun, counted.units, REPLIES.sampled - sampled)
        if latest.seconds >= LEAST and (latest.units or latest.tokens):
            others = [pace for pace in known() if (pace.verb, pace.model) != (verb, model)]
            with suppress(OSError, RamifyError):  # a cache that cannot be written to costs the next dry run its seconds
                _file().parent.mkdir(parents=True, exist_ok=True)
                write_whole(_file(), json.dumps([asdict(pace) for pace in [*others, latest]]) + "\n")


def seconds(verb: str, model: str, unit: str, estimate: Mapping[str, object]) -> dict[str, float | str]:
    """What an estimate lacks: the seconds of a call that takes so much, by what the last such call took here per unit, else by
    what the last call that sampled from the same model took per token.

    Nothing where the estimate has seconds, and a sentence where nothing is known.
    """
    if any("seconds" in name for name in estimate):
        return {}
    paces = [pace for pace in reversed(known()) if pace.model == model]
    unit = unit.removesuffix(" at most")
    total = estimate.get(unit, estimate.get("samples"))
    for pace in paces:
        if pace.verb == verb and pace.units and isinstance(total, int | float):
            done = plural(round(pace.units), unit.removesuffix("s"))
            return _told(total * pace.seconds / pace.units, f"{done} of its last call here")
    tokens = next((float(value) for name in TOKENS if isinstance(value := estimate.get(name), int | float)), None)
    for pace in paces:
        if tokens is not None and pace.tokens:
            done = plural(round(pace.tokens), "token")
            return _told(tokens * pace.seconds / pace.tokens, f"{done} of the last `ramify {pace.verb}` here")
    about = " of this run" if model.startswith(RUN) else f" with {model}" if model else ""
    return {"seconds": f"not known: no such call{about} was made on this machine yet"}


def _told(value: float, source: str) -> dict[str, float | str]:
    return {"seconds, at most about": round(value), "seconds from": source}
