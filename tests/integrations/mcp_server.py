"""A real MCP server over stdio for the tests: a counter, a pad of notes, and tools that misbehave on demand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from mcp.server import MCPServer

server = MCPServer("counter")
state = {"count": 0, "notes": []}


@server.tool()
def add(amount: int) -> int:
    """Add to the counter and tell what it shows."""
    state["count"] += amount
    return state["count"]


@server.tool()
def note(text: str) -> str:
    """Write a note down; not idempotent."""
    state["notes"].append(text)
    return f"{len(state['notes'])} notes"


@server.tool()
def fail() -> str:
    """Raise."""
    raise ValueError("the pad is full")


@server.tool()
def flood(size: int) -> str:
    """A long answer."""
    return "x" * size


@server.tool()
def hang() -> str:
    """Never answer."""
    time.sleep(3600)
    return ""


@server.tool()
def die() -> str:
    """Be killed in mid-call, as by the kernel."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@server.tool()
def garbage(lines: int) -> str:
    """Print what is no message, then answer."""
    for _ in range(lines):
        sys.__stdout__.write("this is {not JSON\n")
    sys.__stdout__.flush()
    return "after the garbage"


@server.tool()
def pid() -> int:
    """The server's process."""
    return os.getpid()


@server.tool()
def child() -> int:
    """A process that the server leaves running."""
    return subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid


@server.tool()
def variables() -> str:
    """Names of the environment's variables."""
    return " ".join(sorted(os.environ))


if __name__ == "__main__":
    if "--stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--silent" in sys.argv:
        time.sleep(3600)
    if "--broken" in sys.argv:
        sys.exit("no such configuration")
    server.run()
    while "--stubborn" in sys.argv:
        time.sleep(1)
