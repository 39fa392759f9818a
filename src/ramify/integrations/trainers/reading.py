"""Rows of third-party trainers as trees: reads JSON lines and Parquet, and adds completions under shared prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.trace.aliases import NOTHING, RECORD, Judged
from ramify.trace.chats import open_calls
from ramify.trace.db import Run
from ramify.trace.foreign import Thread, end_attempt, taken
from ramify.trace.lines import read_lines
from ramify.trace.message import plain, read_message
from ramify.trace.node import TokenValues
from ramify.trace.notes import skipping, unread
from ramify.trace.shapes import normal

SINGLE = 3.4e38
"""Just below the largest number of 32 bits."""
_BATCH, _AT_ONCE = 256, 1 << 30
FREE, RATIO, ROW = 16 << 20, 200, 1000
"""Limits on a Parquet file's unpacked bytes: a constant, a multiple of its size, and a cost per row."""


class Forest:
    """Completions under their prompts: rows with one prompt, or of one named task (and one step of a training), share a tree."""

    def __init__(self, run: Run, maker: str) -> None:
        self.run, self.maker = run, maker
        self._sampled: dict[str, int] = {}

    def add(
        self,
        prompt: Sequence[Mapping[str, Any]],
        completion: Sequence[Mapping[str, Any]],
        where: str,
        *,
        task: str | None = None,
        step: int | None = None,
        scores: Mapping[str, Any] | None = None,
        advantage: Any = None,
        record: Mapping[str, Any] | None = None,
        judged: Judged | None = None,
    ) -> None:
        """Add one completion. ``scores``: scorer -> number, or None where it was not scored; ``record``: the row's other fields.

        ``task`` puts it into the tree of that name, whatever its prompt; ``judged`` is how the row says that it ended.

        Raises UserError naming ``where`` on messages that are none and on scores that are not numbers.
        """
        given = [read_message(m, f"{where}: message {i} of the prompt") for i, m in enumerate(prompt)]
        replies = [read_message(m, f"{where}: message {i} of the completion") for i, m in enumerate(completion)]
        if not replies:
            raise UserError(f"{where}: the completion holds no message")
        name = (
            f"prompt-{stable_hash('prompt', canonical_json([[m.role, m.text, m.data] for m in given]))[:16]}"
            if task is None
            else task
        )
        group = "" if step is None else f"step-{step:06d}"
        tree = f"{group}/{name}" if group else name
        self.run.add_tree(tree, {"id": name}, group)
        index = self._sampled[tree] = self._sampled.get(tree, -1) + 1
        thread = Thread(self.run, tree, index)
        for message in given:
            thread.hang(message, False)
        unread(record or {}, RECORD, "record")
        about = {**({"record": plain(record)} if record else {}), **open_calls([*given, *replies])}
        stop = {"stop": judged.stop} if judged is not None and judged.stop else {}
        for i, message in enumerate(replies):
            last = i == len(replies) - 1
            thread.hang(message, message.role == "assistant", last, about if last else None, **(stop if last else {}))
        leaf = thread.node.id
        values = {scorer: number(value, f"{where}: '{scorer}'") for scorer, value in (scores or {}).items()}
        end_attempt(self.run, thread.node, (judged or NOTHING)._replace(scores=values))
        credit = number(advantage, f"{where}: 'advantage'", SINGLE)
        if credit is not None:
            self.run.add(TokenValues(leaf, "advantage", self.maker, np.asarray([credit], np.float32)))


def messages(value: Any, role: str, spot: str) -> list[Mapping[str, Any]]:
    """A text, or a list of messages, as messages; a text is one message of ``role``. Raises UserError naming ``spot``."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        raise UserError(f"{spot} must be text or a list of messages" + (", and it is missing" if value is None else ""))
    return value


def number(value: Any, spot: str, limit: float = math.inf) -> float | None:
    """A finite number, or None for null and for NaN (not scored). Raises UserError naming ``spot`` on anything else.

    ``limit``: numbers this large or larger are refused (``SINGLE`` for what is kept in 32 bits).
    """
    if isinstance(value, bool):
        return float(value)
    if value is not None and not isinstance(value, (int, float)):
        raise UserError(f"{spot} must be a number, not {str(value)[:40]!r}")
    try:
        found = math.nan if value is None else float(value)
    except OverflowError:
        found = math.inf
    if abs(found) >= limit:
        raise UserError(f"{spot} is infinite" + (" in 32 bits" if limit < math.inf else ""))
    return None if math.isnan(found) else found


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, record) of each row of a ``.parquet`` file or, by any other name, of JSON lines.
    Raises UserError naming the place."""
    if path.suffix.lower() != ".parquet":
        for number, record in read_lines(path):
            yield f"{path}:{number}", record
        return
    import pyarrow
    import pyarrow.parquet

    number = decoded = 0
    try:
        allowed = FREE + RATIO * path.stat().st_size
        with pyarrow.parquet.ParquetFile(path) as file:
            groups = [file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)]
            # repeated values lie in the file once: a row may hold as much as its whole group, so of large groups few rows come at
            # once
            for batch in file.iter_batches(min(_BATCH, max(1, _AT_ONCE // max([1, *groups])))):
                decoded += batch.nbytes + ROW * batch.num_rows
                if decoded > allowed:
                    raise UserError(f"{path}: its rows unpack to over {RATIO} times its size, which no log's do")
                for record in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", record
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:  # the last: a column's name or a text is not UTF-8
        raise UserError(f"cannot read {path}: {str(error).splitlines()[0]}") from error


def add_records(run: Run, files: Iterable[Path], add: Callable[[dict[str, Any], str], None]) -> int:
    """``add(record, place)`` for each record of the files, which adds to ``run``; how many there were.
    Raises UserError naming the place, or that there is none."""

    def read(record: dict[str, Any], where: str) -> None:
        add(normal(record, where), where)

    count = 0
    for where, record in (item for file in files for item in read_records(file)):
        count += taken(run, where, partial(read, record, where))
    if not count:
        raise UserError(f"{', '.join(map(str, files))} holds no record" + (" that can be read" if skipping() else ""))
    return count
