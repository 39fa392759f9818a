"""Measured costs of speculation cycles on one machine, for schedules; saved in the drafter's folder by `ramify dspark profile`.

A cycle is everything from one batch to the next: absorbing and drafting, the target's pass, verification, taking tokens in and
going back over rejected ones. A table that leaves a part out promises gains that are not there.
"""

from __future__ import annotations

import json
import platform
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ramify.base.errors import UserError
from ramify.base.files import read_record, write_whole

if TYPE_CHECKING:
    pass

FILE = "profile.json"


@dataclass(frozen=True, eq=False)
class Profile:
    """Seconds of cycles at some loads; between them and beyond them straight lines. Implements
    :class:`ramify.engine.schedules.Costs`.

    Raises UserError where the numbers do not belong together.
    """

    block: int
    requests: tuple[int, ...]
    """Loads, ascending."""
    plain: tuple[float, ...]
    """Seconds of a step without drafts, by load."""
    draft: tuple[tuple[float, float], ...]
    """Seconds of drafting 1 token and a whole block, by load."""
    verify: tuple[tuple[float, ...], ...]
    """Seconds of everything but drafting with k drafts a request verified, k = 0..block, by load."""
    acceptance: tuple[float, ...] = ()
    """Conditional acceptance by position while it was measured, [block]."""
    machine: str = ""
    threads: int = 1
    target: str = ""
    """Hash of the target's weights."""
    drafter: str = ""
    """Hash of the drafter's weights."""
    _warned: set[int] = field(default_factory=set, compare=False, repr=False)

    def __post_init__(self) -> None:
        n = len(self.requests)
        fits = n == len(self.plain) == len(self.draft) == len(self.verify) and list(self.requests) == sorted(set(self.requests))
        if (
            not n
            or not fits
            or any(len(row) != self.block + 1 for row in self.verify)
            or any(len(row) != 2 for row in self.draft)
        ):
            raise UserError(f"a profile needs ascending loads and, for each, costs of drafting and of 0 to {self.block} drafts")
        if len(self.acceptance) not in (0, self.block):
            raise UserError(f"the profile has {len(self.acceptance)} acceptance rates for a block of {self.block}")

    @property
    def prior(self) -> np.ndarray | None:
        """Acceptance by position to start a schedule from, [block]."""
        return np.array(self.acceptance) if self.acceptance else None

    def cycle(self, requests: int, tokens: np.ndarray, depth: int) -> np.ndarray:
        """Seconds, of the shape of ``tokens``. Beyond the largest load the last slope continues, with one warning."""
        low, share = self._between(requests)
        if not depth:
            return np.full(np.shape(tokens), _line(self.plain[low : low + 2], share))
        first, whole = (_line([pair[i] for pair in self.draft[low : low + 2]], share) for i in (0, 1))
        drafting = first if self.block == 1 else first + (whole - first) * (depth - 1) / (self.block - 1)
        per_request = np.asarray(tokens, np.float64) / requests - 1
        rest = [np.interp(per_request, np.arange(self.block + 1), row) for row in self.verify[low : low + 2]]
        return np.asarray(drafting + _line(rest, share))

    def _between(self, requests: int) -> tuple[int, float]:
        """The profiled load below, and the requested load's fraction of the way to the next."""
        loads = self.requests
        if len(loads) == 1 or requests <= loads[0]:
            return 0, 0.0
        if requests > loads[-1] and requests not in self._warned:
            self._warned.add(requests)
            warnings.warn(
                f"the profile ends at {loads[-1]} requests; costs of {requests} are its last slope: profile up to there",
                stacklevel=3,
            )
        low = min(int(np.searchsorted(loads, requests, side="left")) - 1, len(loads) - 2)
        return low, (requests - loads[low]) / (loads[low + 1] - loads[low])

    def save(self, folder: Path | str) -> Path:
        """Write ``profile.json`` into the drafter's folder."""
        record = {name: value for name, value in asdict(self).items() if not name.startswith("_")}
        path = Path(folder) / FILE
        write_whole(path, json.dumps(record, indent=1) + "\n")
        return path

    @classmethod
    def load(cls, folder: Path | str) -> Profile:
        """Read a drafter's profile. Raises UserError where it is missing or not one."""
        path = Path(folder) / FILE
        record = read_record(path, "the profile")
        names = [f for f in cls.__dataclass_fields__ if not f.startswith("_")]
        if set(record) - set(names):
            raise UserError(f"{path} is not a profile (fields: {', '.join(names)})")
        try:
            for name in ("requests", "plain", "draft", "verify", "acceptance"):
                record[name] = _tuples(record.get(name, ()))
            return cls(**record)
        except (TypeError, ValueError) as error:
            raise UserError(f"{path} is not a profile: {error}") from error

    def check(self, target: str, drafter: str) -> None:
        """Refuse costs of another pair (UserError); warn about those of another machine or thread count."""
        for name, measured, given in (("target", self.target, target), ("drafter", self.drafter, drafter)):
            if measured and measured != given:
                raise UserError(f"the profile was made with another {name}; renew it with 'ramify dspark profile'")
        here = (machine_name(), torch.get_num_threads())
        if self.machine and (self.machine, self.threads) != here:
            warnings.warn(
                f"the profile was made on {self.machine} with {self.threads} threads, not on {here[0]} with {here[1]}",
                stacklevel=2,
            )


def machine_name() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _line(ends: Sequence[Any], share: float) -> Any:
    """The value ``share`` of the way from the first end to the second (the last slope beyond it)."""
    return ends[0] if len(ends) == 1 or not share else ends[0] + share * (ends[1] - ends[0])


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
