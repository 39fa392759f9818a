"""The server's recorder: every exchange into a run, by one thread that writes, before the end of the answer goes out.

What is promised: whoever has read the end of an answer finds it in the run, also where the server was killed a moment later.
Nothing of a request's headers is stored. The loop that serves never waits for the disk; an answer waits for its own record.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramify.base.errors import RamifyError
from ramify.base.secrets import redact
from ramify.model.chat import ChatTemplate
from ramify.trace.db import Run
from ramify.web.conversations import Conversations
from ramify.web.exchange import Exchange

KIND = "serve --record"
_Job = tuple[Exchange, asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Recorder:
    """Records into the run at ``folder``: a new one, or a recording that is there, which continues.
    ``await recorder(exchange)``; then :meth:`close`.

    ``template`` is the model's where it samples tokens; ``hidden`` redacts (:mod:`ramify.web.redaction`), which is for a whole
    run or for nothing of it; the model may change. Raises UserError where ``folder`` holds a run of another verb or cannot hold
    one, or another process writes to it.
    """

    def __init__(
        self, folder: Path | str, config: Mapping[str, Any], template: ChatTemplate | None = None, hidden: bool = False
    ) -> None:
        self.folder = Path(folder)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._opened: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        settings = redact({"serve": dict(config)})
        self._writer = threading.Thread(target=self._write, args=(settings, template, hidden), name="recorder", daemon=True)
        self._writer.start()
        failed = self._opened.get()
        if failed is not None:
            raise failed

    async def __call__(self, exchange: Exchange) -> None:
        """Store an exchange; returns when it is on the disk's side of a kill. Raises RamifyError where it cannot be stored.

        A cancelled caller's exchange is stored all the same.
        """
        if not self._writer.is_alive():
            raise RamifyError(f"the recorder of {self.folder} is closed")
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[None] = loop.create_future()
        self._jobs.put((exchange, loop, stored))
        await stored

    def close(self) -> None:
        """Store what waits, and close the run."""
        self._jobs.put(None)
        self._writer.join()

    def _write(self, settings: Mapping[str, Any], template: ChatTemplate | None, hidden: bool) -> None:
        """The thread that owns the run: a run is used by one thread at a time."""
        try:
            run = Run.begin(self.folder, KIND, {"redact": hidden}, settings)
            conversations = Conversations(run, template, hidden)
        except BaseException as error:
            self._opened.put(error)
            return
        self._opened.put(None)
        with run:
            while (job := self._jobs.get()) is not None:
                exchange, loop, stored = job
                failed: Exception | None = None
                try:
                    conversations.add(exchange)
                except RamifyError as error:
                    failed = error
                except Exception as error:  # one exchange that cannot be stored must not stop the recorder
                    failed = RamifyError(f"the exchange cannot be recorded: {type(error).__name__}: {error}")
                _report(loop, stored, failed)


def _report(loop: asyncio.AbstractEventLoop, stored: asyncio.Future[None], failed: Exception | None) -> None:
    def settle() -> None:
        if not stored.done():
            stored.set_result(None) if failed is None else stored.set_exception(failed)

    with suppress(RuntimeError):  # where the server's loop has ended meanwhile
        loop.call_soon_threadsafe(settle)
