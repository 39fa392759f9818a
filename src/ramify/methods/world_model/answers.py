"""Answers that outlive the process: predictions by the hash of all that decided them,
in a run (one SQLite file), each committed when made."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ramify.base.errors import UserError
from ramify.methods.world_model.predict import Prediction
from ramify.trace.connect import holds_run
from ramify.trace.db import Run

ANSWERS = "world-model serve"
"""The kind of such a run, whoever writes it: the verb that a person continues it by.
Its journal holds an entry of this kind an answer."""
_TRIES, _PAUSE = 20, 0.1
T = TypeVar("T")


class KeptAnswers:
    """The answers in a folder. Whoever opens it first writes; another process meanwhile reads what is there and adds nothing.

    A run is used by one thread at a time, so all its work is done in one. Raises UserError, at the first use, where the
    folder holds something else or cannot be made.
    """

    _open: ClassVar[dict[tuple[int, Path], KeptAnswers]] = {}
    _opening: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writes = False
        """Whether this process is the one that writes."""
        self._run: Run | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ramify-answers")

    @classmethod
    def at(cls, folder: Path | str) -> KeptAnswers:
        """Those of a folder: one object a process, whoever asks for it."""
        key = (os.getpid(), Path(folder).expanduser().resolve())
        with cls._opening:
            return cls._open.setdefault(key, cls(key[1]))

    async def get(self, key: str) -> Prediction | None:
        """The answer that is kept under ``key``."""
        return await self._done(lambda: self._get(key))

    async def put(self, key: str, answer: Prediction) -> None:
        """Keep an answer, durably once this returns; the first one under a key stays."""
        await self._done(lambda: self._put(key, answer))

    def close(self) -> None:
        """Give the folder back; a later :meth:`at` opens it again."""
        with self._opening:
            self._open.pop((os.getpid(), self.folder), None)
        self._thread.submit(lambda: None if self._run is None else self._run.close()).result()
        self._thread.shutdown()

    async def _done(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._thread.submit(work))

    def _opened(self) -> Run:
        if self._run is None:
            self._run = self._begun()
        return self._run

    def _begun(self) -> Run:
        for left in reversed(range(_TRIES)):
            try:
                run = Run.begin(self.folder, ANSWERS, {})
                self.writes = True
                return run
            except UserError:
                if holds_run(self.folder):  # another process writes, or it is not a run of answers
                    run = Run.open(self.folder)
                    if run.kind == ANSWERS:
                        return run
                    run.close()
                    raise
                if not left:
                    raise
                time.sleep(_PAUSE)  # another process may be making it
        raise AssertionError

    def _get(self, key: str) -> Prediction | None:
        found = self._opened().journal(ANSWERS, key)
        return self._read(found[0].payload) if found else None

    def _read(self, record: Any) -> Prediction:
        match record:
            case {"text": str() | None as text, "reply": str(reply), "why": str(why), "dropped": int(dropped)}:
                return Prediction(text, reply, why, dropped)
        raise UserError(f"{self.folder} holds an answer without text, reply, why and dropped: it was not written by ramify")

    def _put(self, key: str, answer: Prediction) -> None:
        run = self._opened()
        if self.writes:
            run.log(ANSWERS, key, asdict(answer))
            run.commit()
