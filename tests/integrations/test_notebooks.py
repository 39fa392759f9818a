"""Where an event loop runs already: the cells of a notebook in a real kernel, a handler of a web server, an asynchronous test."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from doc_blocks import blocks
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import ramify
from ramify import Observation, Task
from ramify.base.errors import UserError

ROOT = Path(__file__).resolve().parents[2]

BEGIN = """
import asyncio, json, pathlib, random, urllib.request, warnings
warnings.simplefilter("error")
import ramify
asyncio.get_running_loop()
"""
AGENT = """
@ramify.tool("pure")
def price(room):
    return {4: 400, 7: 700}[room]

def ask(prompt, url):
    words = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]}).encode()
    sent = urllib.request.Request(url + "/chat/completions", words, {"content-type": "application/json"})
    with urllib.request.urlopen(sent) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

async def booker(prompt, url):
    return await asyncio.to_thread(ask, prompt, url)

def says(messages, key):
    return random.Random(key).choice(["4", "4", "7"])

mine = ramify.agent(booker, tools=[price], grade=lambda task, answer: answer == "4")
booked = ramify.play(says, mine, [{"id": "room", "prompt": "Which room is cheaper, 4 or 7?"}], attempts=8, out="runs/booker")
ramify.why("runs/booker", model=says, env=mine, samples=20)
"""
SLOW = """
began, calls = pathlib.Path("began"), []

async def slow(messages, key):
    calls.append(key)
    if len(calls) == 30 and not began.exists():
        before = 0
        while before < len(calls):  # until the other attempts have ended, however slow they are
            before = len(calls)
            await asyncio.sleep(0.5)
        began.touch()
        await asyncio.sleep(600)
    return agent(messages, key)

def again():
    calls.clear()
    began.unlink()

def ended(path):
    with ramify.Run.open(path) as run:
        return sum(node.text in ('The lamp!', 'It is dark.') for info in run.trees() for node in run.nodes(info.name))
"""
SEEN = """
from ramify.base.progress import Progress

class Seen(Progress):
    def begin(self, total, done=0, phase="", unit=""):
        if phase.startswith("sample"):
            pathlib.Path("began").touch()
"""
IDLE = "assert not [thread for thread in __import__('threading').enumerate() if thread.name == 'ramify']"


def python_of(page: str, number: int = 0) -> str:
    return [text for language, text, _ in blocks(ROOT / page) if language == "python"][number]


class Kernel:
    """A kernel under way, and what its cells showed."""

    def __init__(self, client: NotebookClient) -> None:
        self.client = client

    async def cell(self, code: str) -> list[dict[str, Any]]:
        cell = new_code_cell(code)
        self.client.nb.cells.append(cell)
        await self.client.async_execute_cell(cell, len(self.client.nb.cells) - 1)
        return [dict(output) for output in cell.outputs]

    async def runs(self, code: str) -> str:
        """Run a cell that must raise nothing and warn of nothing; what it shows as HTML."""
        outputs = await self.cell(code)
        assert not [one for one in outputs if one["output_type"] == "error" or one.get("name") == "stderr"], outputs
        return "".join(one["data"].get("text/html", "") for one in outputs if "data" in one)

    async def interrupted(self, code: str, began: Path) -> str:
        """Run a cell and interrupt it, as the button does, once ``began`` is there; the name of the error that ends it."""

        async def press() -> None:
            while not began.exists():
                await asyncio.sleep(0.05)
            await self.client.km.interrupt_kernel()

        outputs, _ = await asyncio.gather(self.cell(code), press())
        return str(next(one["ename"] for one in outputs if one["output_type"] == "error"))


@asynccontextmanager
async def kernel(folder: Path) -> AsyncIterator[Kernel]:
    client = NotebookClient(
        new_notebook(), timeout=100, allow_errors=True, resources={"metadata": {"path": str(folder)}}, kernel_name="python3"
    )
    kept = {"IPYTHONDIR": str(folder / "ipython"), "OMP_NUM_THREADS": "1"}
    async with client.async_setup_kernel(env=os.environ | kept, stderr=subprocess.DEVNULL):
        yield Kernel(client)


@pytest.fixture(autouse=True)
def jupyter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CONFIG", "DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{name}_DIR", str(tmp_path / "jupyter"))


def test_the_cells_of_a_notebook(tmp_path: Path) -> None:
    async def cells() -> None:
        async with kernel(tmp_path) as here:
            await here.runs(BEGIN)
            await here.runs(python_of("docs/why.md"))  # its own House, played and asked about
            assert "<table" in await here.runs("why")
            assert "<table" in await here.runs("attempt = ramify.play(agent, House, [{'id': 'l'}], out='runs/one')[0]; attempt")
            fork = "ramify.fork_run('runs/one', attempt.turns[0].node.id, n=4, model=agent, env=House)"
            assert "<table" in await here.runs(fork)
            assert "<iframe" in await here.runs("ramify.Run.open('runs/one')")
            assert "<table" in await here.runs(AGENT)
            await here.runs("await asyncio.sleep(0); ramify.play(agent, House, [{'id': 'l'}], out='runs/awaits')")
            await here.runs("assert ramify.wait_for(asyncio.sleep(0, result=3)) == 3")
            wrong = await here.cell("ramify.play(agent, House, [{'id': 'l'}], out='runs/one')")
            assert [one["ename"] for one in wrong] == ["UserError"]

            await here.runs(SLOW)
            began = tmp_path / "began"
            play = "ramify.play(slow, House, [{'id': 'l'}], attempts=32, out='runs/cut')"
            assert await here.interrupted(play, began) == "KeyboardInterrupt"
            await here.runs(f"{IDLE}\nagain()\nassert ramify.Run.open('runs/cut', write=True).trees()")
            for run in ("two", "three"):
                await here.runs(f"(attempt,) = ramify.play(agent, House, [{{'id': 'l'}}], out='runs/{run}')")
            fork = "ramify.fork_run('runs/two', attempt.turns[0].node.id, n=12, model=slow, env=House)"
            assert await here.interrupted(fork, began) == "KeyboardInterrupt"
            await here.runs(f"{IDLE}\nassert ended('runs/two') > 1\ncalls.clear()\ndone = {fork}\nmore = len(calls)")
            await here.runs(f"calls.clear()\nwhole = {fork.replace('two', 'three')}")
            await here.runs("assert 0 < more < len(calls), (more, len(calls))")
            same = "[attempt.outcome for attempt in {}.arm.attempts]"
            await here.runs(f"assert {same.format('whole')} == {same.format('done')}\nassert len(done.arm.attempts) == 12")
            await here.runs("warnings.resetwarnings()")

    asyncio.run(cells())


@pytest.mark.slow
def test_what_loads_weights_in_a_notebook(tmp_path: Path) -> None:
    """README's cell, processes as a back end, and a small training run that is interrupted and continued."""
    small = "{'updates': 3, 'tokens': 3000, 'eval_episodes': 8, 'tasks_per_update': 4, 'train_tasks': 16}"

    async def cells() -> None:
        async with kernel(tmp_path) as here:
            await here.runs(BEGIN)
            await here.runs(python_of("README.md"))
            assert "<table" in await here.runs("fork")
            await here.runs("ramify.play('builtin', 'household', out='runs/there', backend='processes:2', attempts=2)")
            await here.runs(SEEN)
            improve = f"ramify.improve({small}, 'runs/better', Seen())"
            assert await here.interrupted(improve, tmp_path / "began") == "KeyboardInterrupt"
            await here.runs(f"{IDLE}\nresult = ramify.resume('runs/better')\nassert result.updates == 3, result")
            await here.runs("ramify.why('runs/better', samples=8)")
            await here.runs("warnings.resetwarnings()")

    asyncio.run(cells())


class Sum:
    """One episode."""

    system, max_turns = "Add.", 2

    def reset(self, task: Task, seed: int) -> Observation:
        self.said = ""
        return Observation("1 + 1")

    def step(self, action: str) -> Observation:
        self.said = action
        return Observation("right" if action == "2" else "wrong", float(action == "2"), terminated=True, outcome=action == "2")

    def snapshot(self) -> Any:
        return self.said

    def restore(self, snapshot: Any) -> None:
        self.said = snapshot

    def key(self) -> str:
        return self.said


def guesses(messages: list[dict[str, Any]], key: int) -> str:
    return "2" if key % 3 else "3"


def all_of_it(folder: Path) -> list[str]:
    """What waits, in an order that each needs: what it says of an agent that is wrong one time in three."""
    attempts = ramify.play(guesses, Sum, [{"id": "sum"}], attempts=6, out=folder)
    fork = ramify.fork_run(folder, attempts[0].turns[0].node.id, n=4, model=guesses, env=Sum)
    why = ramify.why(folder, model=guesses, env=Sum, samples=20)
    with pytest.raises(UserError, match="holds a run"):
        ramify.play(guesses, Sum, [{"id": "sum"}], out=folder)
    return [str([attempt.outcome for attempt in attempts]), str([attempt.outcome for attempt in fork.arm.attempts]), why.headline]


def in_an_asynchronous_test(work: Callable[[Path], list[str]], folder: Path) -> list[str]:
    async def test() -> list[str]:
        return work(folder)

    with asyncio.Runner() as runner:
        return runner.run(test())


def in_a_handler(work: Callable[[Path], list[str]], folder: Path) -> list[str]:
    async def handler(request: Request) -> JSONResponse:
        return JSONResponse(work(folder))

    async def ask() -> list[str]:
        transport = httpx2.ASGITransport(Starlette(routes=[Route("/", handler)]))
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            found: list[str] = (await client.get("/")).json()
            return found

    return asyncio.run(ask())


@pytest.mark.parametrize("door", [in_an_asynchronous_test, in_a_handler])
def test_the_python_functions_say_the_same_where_a_loop_runs(door: Any, tmp_path: Path) -> None:
    assert door(all_of_it, tmp_path / "inside") == all_of_it(tmp_path / "outside")
