"""What a gateway costs a request, compared with LiteLLM's proxy to the same stub upstream:
CPU seconds of the proxy, added median latency.

    LITELLM_PYTHON=/path/to/venv/bin/python python benchmarks/gateway.py [--save] [--reps 5]

The stub answers at once, so what is measured is the proxy. Each repetition runs every proxy in turn at 1, 16 and 64 clients that
ask one request after another over kept connections, and at 16 for streams of 50 pieces; ratios are of the same repetition.
``direct`` asks the stub itself: it is what added latency is counted from. One process a proxy, logs off, no database. LiteLLM's
interpreter: --litellm, else LITELLM_PYTHON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import save, spread

CELLS = {(1, False): 100, (16, False): 192, (64, False): 256, (16, True): 64}
"""Concurrent clients and whether answers are streamed -> requests of one measurement."""
PIECES = 50
MODEL = "stub"
TEXT = "a reply of some words, " * 20
ASK = {
    "model": MODEL,
    "messages": [{"role": "system", "content": "You are brief. " * 20}, {"role": "user", "content": "Why? " * 100}],
}


def _chunk(delta: dict[str, Any], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    made = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}
    body = b"data: " + json.dumps(made).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(body), body)


def _answers() -> tuple[bytes, list[bytes]]:
    message = {"role": "assistant", "content": TEXT}
    whole = json.dumps(
        {
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 200, "completion_tokens": 100, "total_tokens": 300},
        }
    ).encode()  # fmt: skip
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(whole)
    begin = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    size = len(TEXT) // PIECES
    pieces = [_chunk({"role": "assistant", "content": ""}, None)]
    pieces += [_chunk({"content": TEXT[i * size : (i + 1) * size]}, None) for i in range(PIECES)]
    pieces += [_chunk({}, "stop"), b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"]
    return head + whole, [begin, *pieces]


class Stub(asyncio.Protocol):
    """A server of one reply, as cheap as can be; streams go out in several writes, so that they arrive in pieces."""

    whole, stream = _answers()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.got = b""

    def data_received(self, data: bytes) -> None:
        self.got += data
        head, found, body = self.got.partition(b"\r\n\r\n")
        sizes = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if not found or len(body) < (int(sizes[0]) if sizes else 0):
            return
        self.got = b""
        if b'"stream":true' in body.replace(b" ", b""):
            self._next(0)
        else:
            self.transport.write(self.whole)

    def _next(self, at: int) -> None:
        if at < len(self.stream):
            self.transport.write(self.stream[at])
            asyncio.get_running_loop().call_soon(self._next, at + 1)


async def serve_stub(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", port)
    await server.serve_forever()


def request(streams: bool, model: str = MODEL) -> bytes:
    body = json.dumps({**ASK, "model": model, **({"stream": True} if streams else {})}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: "
        f"{len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: bytes) -> None:
    """One request, its whole answer read. Raises where it is not answered with 200."""
    writer.write(raw)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b" 200 " not in head[:15]:
        raise RuntimeError((head + await reader.read(500)).decode("utf-8", "replace"))
    if b"transfer-encoding: chunked" in head:
        while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
            await reader.readexactly(size + 2)
        await reader.readuntil(b"\r\n")
    else:
        await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))


async def load(port: int, clients: int, requests: int, streams: bool) -> list[float]:
    """Seconds of each request of ``clients`` who ask one after another."""
    raw, left, seconds = request(streams), iter(range(requests)), []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        for _ in left:
            start = time.perf_counter()
            await one(reader, writer, raw)
            seconds.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return seconds


def cpu(pid: int) -> float:
    """User and system seconds of a process and the children that it waited for or has."""
    pids = [
        pid,
        *(int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()),
    ]
    total = 0.0
    for one_of in pids:
        fields = Path(f"/proc/{one_of}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, env: dict[str, str]) -> Iterator[int]:
    """A server process, once it answers a request; ended at the end."""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log)
        try:
            for _ in range(1200):
                with contextlib.suppress(OSError, RuntimeError, asyncio.IncompleteReadError):
                    asyncio.run(load(port, 1, 1, False))
                    break
                if child.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(f"{command} has ended: {log.read()[-2000:].decode()}")
                time.sleep(0.1)
            yield child.pid
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def measure(port: int, pid: int, clients: int, streams: bool) -> tuple[float, float]:
    """(CPU seconds a request, median seconds of a request)."""
    requests = CELLS[clients, streams]
    asyncio.run(load(port, clients, clients, streams))  # connections of the proxy to the upstream are made
    before = cpu(pid)
    seconds = asyncio.run(load(port, clients, requests, streams))
    return (cpu(pid) - before) / requests, statistics.median(seconds)


def litellm_version(python: str) -> str:
    command = [python, "-c", "from importlib.metadata import version; print(version('litellm'))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm", default=os.environ.get("LITELLM_PYTHON", ""))
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--stub", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stub:
        asyncio.run(serve_stub(args.stub))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end with it
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = {name: free_port() for name in ("direct", "ramify", "ramify, recording", "LiteLLM")}
        upstream = f"http://127.0.0.1:{ports['direct']}/v1"
        ours = [sys.executable, "-m", "ramify.cli.main", "serve", f"chat:{MODEL}@{upstream}", "--port"]
        config = folder / "litellm.yaml"
        params = {"model": f"openai/{MODEL}", "api_base": upstream, "api_key": "none"}
        config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": params}]}))
        commands = {
            "direct": [sys.executable, __file__, "--stub", str(ports["direct"])],
            "ramify": [*ours, str(ports["ramify"])],
            "ramify, recording": [*ours, str(ports["ramify, recording"]), "--record", str(folder / "run")],
        }
        if args.litellm:
            litellm = Path(args.litellm).with_name("litellm")
            commands["LiteLLM"] = [str(litellm), "--config", str(config), "--port", str(ports["LiteLLM"]), "--host", "127.0.0.1"]
        # LiteLLM wants a key of its own by default; neither proxy asks its clients for one here
        quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False"}
        quiet["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
        pids = {name: stack.enter_context(running(command, ports[name], quiet)) for name, command in commands.items()}
        found: dict[tuple[str, int, bool], list[tuple[float, float]]] = {}
        for rep in range(args.reps + 1):
            for clients, streams in CELLS:
                for name, pid in pids.items():
                    cell = measure(ports[name], pid, clients, streams)
                    if rep:  # the first warms up
                        found.setdefault((name, clients, streams), []).append(cell)
            print(f"repetition {rep} of {args.reps}", flush=True)
    report(found, args)


def report(found: dict[tuple[str, int, bool], list[tuple[float, float]]], args: argparse.Namespace) -> None:
    columns = ["answers", "clients", "proxy", "CPU a request, ms", "of LiteLLM's", "added median latency, ms", "of LiteLLM's"]
    rows = []
    for (name, clients, streams), cells in sorted(found.items(), key=lambda item: (item[0][2], item[0][1], item[0][0])):
        if name == "direct":
            continue
        direct, peer = found["direct", clients, streams], found.get(("LiteLLM", clients, streams), [])
        used = [1000 * c for c, _ in cells]
        added = [1000 * (s - d) for (_, s), (_, d) in zip(cells, direct, strict=True)]
        ratios = latency = "-"
        if peer and name != "LiteLLM":
            ratios = spread([c / p for (c, _), (p, _) in zip(cells, peer, strict=True)])
            latency = spread([(s - d) / (p - d) for (_, s), (_, p), (_, d) in zip(cells, peer, direct, strict=True)])
        rows.append(["stream" if streams else "whole", clients, name, spread(used), ratios, spread(added, 1), latency])
    rows.sort(key=lambda row: (row[0] != "whole", row[1], row[2] == "LiteLLM", row[2]))
    for row in rows:
        print(row)
    if args.save:
        version = f"LiteLLM {litellm_version(args.litellm)}" if args.litellm else "LiteLLM not measured"
        note = (
            f"Median [quartiles] of {args.reps} interleaved repetitions; {version}, one process each, to a stub that answers at "
            "once "
            f"(streams: {PIECES} pieces). Target: at most 0.50 of LiteLLM's CPU at 1, 16 and 64 clients, and of its added "
            "latency at 1 and 16. "
            "The machine was busy with other work: CPU seconds bear that, latencies are of a loaded machine for both."
        )
        save("gateway", "The gateway compared with LiteLLM's proxy", columns, rows, note)


if __name__ == "__main__":
    main()
