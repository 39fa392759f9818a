"""A connection to the pages: one request, which must have come within a time."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 30.0
"""A request whose head is not there by then is cut off; so is whoever does not take the answer in ANSWER_SECONDS."""
ANSWER_SECONDS = 300.0


class OneRequest(H11Protocol):  # type: ignore[misc]
    """HTTP/1.1 as uvicorn speaks it, for one request a connection (every answer says ``connection: close``)."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start both clocks."""
        super().connection_made(transport)
        self._clocks = [self.loop.call_later(HEADER_SECONDS, self._late), self.loop.call_later(ANSWER_SECONDS, transport.abort)]

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop them."""
        for clock in self._clocks:
            clock.cancel()
        super().connection_lost(exc)

    def _late(self) -> None:
        if self.cycle is None:
            self.transport.close()
