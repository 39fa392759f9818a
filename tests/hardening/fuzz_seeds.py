"""Good files of every format that a registered reader reads, to make broken ones of. A reader without any is an error here.

What a format keeps in several files is a folder: one of its files is broken, the others stay as they are.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

from ramify.base.errors import RamifyError
from ramify.trace.convert import write_lines
from ramify.trace.db import Run
from ramify.trace.formats import readers, writers

ROOT = Path(__file__).parents[2]

_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1, "y": 2}'}}
_CHAT = [
    {"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "1+2?"}]},
    {"role": "assistant", "content": None, "tool_calls": [_CALL]}, {"role": "tool", "content": "3", "tool_call_id": "c1"},
    {"role": "assistant", "content": "three"},
]  # fmt: skip
_TRACE = {
    "version": 1,
    "id": "t0",
    "agent": "solver",
    "nodes": [
        {
            "parent": None,
            "message": {"role": "user", "content": "hi"},
            "sampled": False,
            "token_ids": [1, 2],
            "mask": [False, False],
        },
        {
            "parent": 0,
            "message": {"role": "assistant", "content": "ho"},
            "sampled": True,
            "token_ids": [3, 4],
            "mask": [True, True],
            "logprobs": [-0.5, -0.1],
        },
    ],
    "rewards": {"correct": {"score": 1.0, "weight": 1.0}},
    "metrics": {"turns": 1},
    "calls": [],
    "is_completed": True,
}
_ROWS: dict[str, list[list[dict[str, Any]]]] = {
    "chats": [[{"messages": _CHAT, "task": f"t{i // 2}", "reward": i / 2, "note": {"a": [1]}} for i in range(4)]],
    "trl": [
        [{"prompt": _CHAT[:2], "completion": _CHAT[2:], "reward": i / 2, "advantage": 0.5, "step": 1} for i in range(3)],
        [{"prompt": "q", "chosen": "good", "rejected": "bad", "score_chosen": 1.0, "score_rejected": 0.0} for _ in range(3)],
    ],
    "verl": [
        [{"input": "q", "output": f"a{i}", "gts": None, "score": i / 2, "step": 1, "acc": True, "uid": f"u{i}"} for i in range(3)]
    ],
    "verifiers": [
        [
            {
                "example_id": i,
                "prompt": _CHAT[:2],
                "completion": _CHAT[2:],
                "reward": 1.0,
                "metrics": {"m": 0.5},
                "task": "x",
                "info": {},
                "answer": "3",
            }
            for i in range(3)
        ],
        [{"task": {"data": {"id": "a", "q": "hi"}, "key": "k"}, "env": {"id": "e"}, "traces": [_TRACE], "ok": True}],
    ],
    "verify-or-ship": [
        [
            {
                "instance_id": f"i{i // 2}",
                "step": i % 2,
                "Y": i % 2,
                "tests": True,
                "lint": 0.5,
                "cost_usd": 0.1,
                "payload": f"return {i}",
            }
            for i in range(4)
        ],
        [
            {"instance_id": 7, "sample": f"s{i}", "Y": None, "critics": {"tests": 1, "review": None}, "payload_hash": f"h{i}"}
            for i in range(3)
        ],
    ],
}


_ROWS |= {
    form: [[json.loads(line) for line in reader.example.splitlines()]]
    for form, reader in readers().items()
    if reader.example.startswith("{") and form not in (*_ROWS, "steps")
}


_ROWS |= {
    form: [[json.loads(line) for line in readers()[form].example.splitlines()]] for form in ("claude-code", "codex", "atif")
}


def write_seeds(folder: Path) -> dict[str, list[Path]]:
    """Format -> good files and folders, each read by its reader. Formats whose package is not installed are left out."""
    sys.path.append(str(ROOT))  # the harness runs as a script
    from tests.trace.trace_cases import fill, findings

    with Run.create(folder / "every-record", {"seed": 1}) as run:
        run.add(*findings(fill(run)))
        write_lines(run, folder / "run.jsonl")
    seeds: dict[str, list[Path]] = {"run": [folder / "run.jsonl"], "steps": [ROOT / "examples" / "steps.jsonl"]}
    for form, files in _ROWS.items():
        seeds[form] = []
        for number, rows in enumerate(files):
            file = folder / f"{form}-{number}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            seeds[form].append(file)
    readers()["chats"].read(seeds["chats"][0], folder / "chats-run")
    with Run.open(folder / "chats-run") as run:
        for suffix in ("eval", "json"):
            try:
                writers()["inspect"].write(run, folder / f"log.{suffix}")
                seeds.setdefault("inspect", []).append(folder / f"log.{suffix}")
            except (RamifyError, KeyError):
                continue  # inspect_ai is not installed here
    seeds["agents-session"] = [folder / "sessions.db"]
    write_sessions(seeds["agents-session"][0])
    _as_parquet(seeds["trl"][0], folder / "trl.parquet")
    seeds["trl"].append(folder / "trl.parquet")
    good: dict[str, list[Path]] = {}
    for form, reader in readers().items():
        for number, file in enumerate(seeds.get(form, [])):
            reader.read(file, folder / f"check-{form}-{number}")
            shutil.rmtree(folder / f"check-{form}-{number}")
            good.setdefault(form, []).append(file)
        assert form in good or form in ("inspect", "inspect-calls"), (
            f"no good file of the format '{form}' to break: add one to fuzz_seeds.py"
        )
    return good


def write_sessions(file: Path) -> Path:
    """Two sessions as the Agents SDK's ``SQLiteSession`` stores them."""
    asked = {"content": "Is it warm in Oslo?", "role": "user"}
    call = {"arguments": '{"city": "Oslo"}', "call_id": "call_1", "name": "weather", "type": "function_call", "id": "fc_1"}
    told = {"call_id": "call_1", "output": "4 degrees", "type": "function_call_output"}
    said = {"role": "assistant", "type": "message", "content": [{"type": "output_text", "text": "No.", "annotations": []}]}
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY)")
        db.execute("CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, message_data TEXT NOT NULL)")
        for session in ("first", "second"):
            db.execute("INSERT INTO agent_sessions VALUES (?)", (session,))
            rows = [(session, json.dumps(item)) for item in (asked, call, told, said)]
            db.executemany("INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)", rows)
        db.commit()
    return file


def write_world(folder: Path) -> Path:
    """A simulated environment with everything that a world's folder may hold, answered by code or by a recorded log."""
    folder.mkdir()
    lines = {"model": "table:chats.jsonl", "tools": "tools.json", "state": "state.json", "control": "control.toml"}
    lines |= {"tasks": "tasks.jsonl", "layout": "plain", "role": "tool", "verify": "model"}
    (folder / "world.toml").write_text("".join(f'{name} = "{value}"\n' for name, value in lines.items()) + "max_turns = 6\n")
    text = {"type": "object", "properties": {"of": {"type": "string", "enum": ["tea", "salt"]}}, "required": ["of"]}
    (folder / "tools.json").write_text(json.dumps([{"name": "price", "description": "What it costs.", "inputSchema": text}]))
    effects = [{"tool": "price", "do": "get", "table": "shop", "key": "of"}]
    state = {"shop": {"tea": "3 euro"}, "effects": effects, "outputs": {"price": {"type": "string"}}}
    (folder / "state.json").write_text(json.dumps(state))
    kinds = {
        "fault": 'on = [2]\ntext = "429"',
        "rate-limit": "most = 9",
        "paginate": "size = 5",
        "stingy": "words = 3",
        "latency": "",
    }
    control = "".join(f'[[control]]\nkind = "{kind}"\n{more}\n' for kind, more in kinds.items())
    (folder / "control.toml").write_text(control)
    tasks = [
        {"id": f"t{i}", "prompt": "tea?", "tables": {"shop": {"salt": "1"}}, "answer": "1", "split": "train"} for i in range(2)
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _ROWS["chats"][0]))
    return folder


def _as_parquet(lines: Path, out: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    for row in rows:
        row["prompt"] = [{"role": "user", "content": "hi"}]
        row["completion"] = [{"role": "assistant", "content": "ho"}]
    pq.write_table(pa.Table.from_pylist(rows), out)
