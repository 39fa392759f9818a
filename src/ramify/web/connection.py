"""A connection to a client that may be slow, silent or hostile, and a server that ends in order."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 30.0
"""Seconds until a request without complete headers, or an idle connection, is closed."""
BODY_SECONDS = 30.0
"""Every such period must bring PROGRESS bytes of a body, or its end."""
WRITE_SECONDS = 30.0
"""In every such period the client must read PROGRESS bytes of a waiting answer, or all of it."""
LAST_SECONDS = 1.0
"""Seconds for requests cut off by the shutdown to be notified."""
PROGRESS = 16 << 10
SPARE = 64
"""Connections beyond the bound that get an error response; more are closed at once."""


class Connection(H11Protocol):  # type: ignore[misc]
    """HTTP/1.1 as uvicorn speaks it, with a clock on every wait for the client and a bound on connections."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the clock of the first request; beyond the bound the request is answered with 503."""
        super().connection_made(transport)
        self._phase: Any = None
        self._received = 0
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        most, self.limit_concurrency = self.config.limit_concurrency, None
        if len(self.connections) > most:
            self.app = self.config.app.full
        if len(self.connections) > most + SPARE:
            transport.abort()
        self._follow()

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self._received += len(data)
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """The answer is written, though perhaps not yet read."""
        super().on_response_complete()
        self._follow()
        self._mind_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        super().connection_lost(exc)
        for clock in (self._reading, self._writing):
            if clock is not None:
                clock.cancel()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, and let go of the request that was under way."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
            self._mind_reader()
        else:  # in the middle of an answer
            self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _follow(self) -> None:
        """Set the clock of what is waited for: it is set when the wait begins, not by each byte."""
        waits = self.conn.their_state
        phase = (waits, bool(self.conn.trailing_data[0]) if waits is h11.IDLE else False)
        if phase == self._phase:
            return
        self._phase = phase
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if waits is h11.IDLE:
            self._reading = self.loop.call_later(HEAD_SECONDS, self.transport.close)
        elif waits is h11.SEND_BODY:
            self._received = 0
            self._reading = self.loop.call_later(BODY_SECONDS, self._body_due)

    def _body_due(self) -> None:
        if self._received < PROGRESS and not self.flow.read_paused:
            self.transport.abort()
            return
        self._received = 0
        self._reading = self.loop.call_later(BODY_SECONDS, self._body_due)

    def pause_writing(self) -> None:
        """The client reads too slowly: the clock starts."""
        super().pause_writing()
        self._mind_reader()

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        self._mind_reader()

    def _mind_reader(self) -> None:
        """Set the clock of what waits to be read, if anything does."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        if waits := self.transport.get_write_buffer_size():
            self._writing = self.loop.call_later(WRITE_SECONDS, self._read_due, waits)

    def _read_due(self, before: int) -> None:
        waits = self.transport.get_write_buffer_size()
        answered = self.cycle is None or self.cycle.response_complete
        if waits and (self.flow.write_paused or answered) and before - waits < PROGRESS:
            self.transport.abort()
        self._mind_reader()


class Server(uvicorn.Server):  # type: ignore[misc]
    """Ctrl-C or SIGTERM: no new requests, open ones finish within the drain time, ``run`` returns. The second ends it at once."""

    should_exit: bool
    unread = 0
    """Answers that were written and not read by the end."""

    def handle_exit(self, sig: int, frame: Any) -> None:
        """A signal has come. It is not raised again afterwards, as uvicorn does: a requested shutdown is not a failure."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: Any = None) -> None:
        """Refuse new requests and finish open ones; those cut off get a last event and are recorded."""
        await super().shutdown(sockets)
        if tasks := list(self.server_state.tasks):
            for task in tasks if self.force_exit else ():
                task.cancel()
            await asyncio.wait(tasks, timeout=LAST_SECONDS)
        links = [link for link in self.server_state.connections if isinstance(link, Connection)]  # no WebSockets
        over = [link for link in links if link.cycle is None or link.cycle.response_complete]
        self.unread = sum(link.transport.get_write_buffer_size() > 0 for link in over)
