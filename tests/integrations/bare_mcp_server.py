"""An MCP server of another make, without any package: a counter.
It starts in a blink and speaks an older version of the protocol."""

import json
import os
import signal
import sys
import time

count = 0
SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
NAMES = ("pid", "hang", "die", "shapeless", "stray", "refuse", "half")


def answer(method: str, params: dict) -> dict | None:
    global count
    if method == "initialize":
        info = {"name": "bare", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        plain = [{"name": name, "description": name, "inputSchema": {"type": "object"}} for name in NAMES]
        return {"tools": [{"name": "add", "description": "Add.", "inputSchema": SCHEMA}, *plain]}
    if method == "tools/call":
        if params["name"] == "hang":
            time.sleep(3600)
        if params["name"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if params["name"] == "shapeless":
            return {"content": 7}
        if params["name"] == "stray":
            for line in (b"\xff\xfe\x00 no text", b"[" * 200_000, b'{"jsonrpc": "2.0", "id": 999, "result": {}}'):
                sys.stdout.buffer.write(line + b"\n")
        if params["name"] == "refuse":
            return None
        if params["name"] == "half":
            os.write(1, b'{"jsonrpc": "2.0", "id"')
            sys.exit(0)
        if params["name"] == "pid":
            return {"content": [{"type": "text", "text": str(os.getpid())}]}
        try:
            count += int(params["arguments"]["amount"])
        except (KeyError, TypeError, ValueError):
            return {"content": [{"type": "text", "text": "amount is not a number"}], "isError": True}
        return {"content": [{"type": "text", "text": str(count)}]}
    return None


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    result = answer(request["method"], request.get("params") or {})
    reply = {"result": result} if result is not None else {"error": {"code": -32601, "message": "no such method"}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)
