"""The bench: theories simulated and metrics computed in the sandbox, every failure one of
:data:`ramify.methods.theory_loop.domain.PROBLEMS`."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import resources
from importlib.util import find_spec
from types import TracebackType
from typing import Any

import numpy as np

from ramify.base.seeds import derive_key, generator
from ramify.base.waiting import wait_for
from ramify.methods.theory_loop.algorithm import MetricEstimate
from ramify.methods.theory_loop.domain import Data, Design, TheoryError
from ramify.methods.theory_loop.theories import ALLOWED, Theory, checked_source
from ramify.sandbox.find import find_sandbox
from ramify.sandbox.protocol import Limits, Sandbox, Session

MIB = 1 << 20
CELLS, SUBJECTS, CALLS = 60_000, 500, 60_000
"""Of one request at most: probabilities, subjects played trial by trial,
and calls of ``predict`` on what subjects chose before."""


@dataclass(frozen=True)
class Metric:
    """A metric: source of ``metric(data)``, and why. ``weights`` (P,) says that it is a weighted sum of each pair's proportion of
    B choices."""

    code: str
    rationale: str = ""
    weights: tuple[float, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)


def projection(design: Design, weights: Sequence[float], rationale: str = "") -> Metric:
    """The metric that adds each pair's proportion of B choices times its weight;
    pairs are known by their content, never by their position."""
    table = "".join(f"    {(a, b)!r}: {float(w)!r},\n" for a, b, w in zip(design.a, design.b, weights, strict=True))
    code = f"""WEIGHTS = {{
{table}}}


def metric(data):
    shown, chosen = {{}}, {{}}
    for a, b, response in zip(data["option_a_ratings"], data["option_b_ratings"], data["response"]):
        pair = tuple(a), tuple(b)
        shown[pair] = shown.get(pair, 0) + 1
        chosen[pair] = chosen.get(pair, 0) + response
    return sum(WEIGHTS[pair] * chosen[pair] / shown[pair] for pair in WEIGHTS if pair in shown)
"""
    return Metric(code, rationale, tuple(float(w) for w in weights))


def projected(data: Data, weights: Sequence[float]) -> MetricEstimate:
    """What :func:`projection` computes, without running anything: pairs that nobody saw count 0."""
    each = np.nan_to_num(data.proportions) @ np.asarray(weights)
    return MetricEstimate(float(np.nan_to_num(data.p_b) @ np.asarray(weights)), float(each.var()))


class TheoryBench:
    """A sandbox session for theories and one for metrics; nothing of one request lives on to the next.
    Use as an async context manager."""

    def __init__(self, seconds: float = 20.0, sandbox: Sandbox | None = None, allow_unsandboxed: bool = False) -> None:
        """``seconds``: processor time of one request. Raises NeedsError where nothing isolates and that was not allowed."""
        self.seconds, self.memory = seconds, 1024 * MIB
        self._sandbox = sandbox or find_sandbox(allow_unsandboxed=allow_unsandboxed, readable=_packages())
        self._stack, self._ready = AsyncExitStack(), set[str]()
        self._sessions: dict[str, Session] = {}
        source = (resources.files("ramify.methods.theory_loop") / "inside" / "theory_box.py").read_text(encoding="utf-8")
        self._source = f"{source}\nALLOWED = {ALLOWED!r}\n"
        self.requests = 0

    async def __aenter__(self) -> TheoryBench:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    # -- subjects

    async def tables(
        self, theory: Theory, asked: Sequence[tuple[Design, int]], seed: int, *key: str | int, names: Sequence[str | int] = ()
    ) -> list[np.ndarray]:
        """For each (design, n): (n, P) probabilities of B of subjects with their own parameters. Raises TheoryError.

        The samples of each are decided by ``seed``, ``key`` and its name (its index, without ``names``).
        """
        wanted: list[tuple[int, dict[str, Any]]] = []
        for i, (design, n) in enumerate(asked):
            drawn = theory.draw(n, design, generator(seed, "parameters", *key, names[i] if names else i))
            size = max(1, CELLS // design.pairs)
            for start in range(0, n, size):
                some = {name: values[start : start + size] for name, values in drawn.items()}
                wanted.append((i, {"design": _seen(design), "n": min(size, n - start), "parameters": some}))
        found: list[list[np.ndarray]] = [[] for _ in asked]
        while wanted:
            cells = np.cumsum([one["n"] * asked[i][0].pairs for i, one in wanted])
            batch, wanted = wanted[: max(1, int((cells <= CELLS).sum()))], wanted[max(1, int((cells <= CELLS).sum())) :]
            payload = {"code": theory.code, "seed": derive_key(seed, "code", *key), "requests": [one for _, one in batch]}
            for (i, one), text in zip(batch, await self._request("theories", "tables", payload), strict=True):
                found[i].append(_floats(text, (one["n"], asked[i][0].pairs)))
        return [np.concatenate(parts) for parts in found]

    async def simulate_many(
        self,
        theory: Theory,
        asked: Sequence[tuple[Design, int]],
        seed: int,
        *key: str | int,
        names: Sequence[str | int] = (),
        noise: float = 0.0,
        orders: Sequence[np.ndarray] = (),
    ) -> list[Data]:
        """Simulated subjects for each (design, n), whose samples are decided as those of :meth:`tables`. Raises TheoryError.

        ``noise`` is the probability of a uniform choice; ``orders`` are the trials (n, T) of each,
        by default shuffled for each subject.
        """
        assert theory.tree is not None
        names = names or range(len(asked))
        orders = orders or [design.orders(n, seed, *key, name) for name, (design, n) in zip(names, asked, strict=True)]
        if theory.reads_history or not theory.samples:
            rows = zip(names, asked, orders, strict=True)
            return [await self._played(theory, design, order, noise, seed, *key, name) for name, (design, _), order in rows]
        found = []
        tables = await self.tables(theory, asked, seed, *key, names=names)
        for name, (design, n), table, order in zip(names, asked, tables, orders, strict=True):
            p = np.take_along_axis((1 - noise) * table + noise / 2, order, axis=1)
            chosen = generator(seed, "choices", *key, name).random(order.shape) < p
            found.append(Data(design, order, chosen.astype(np.int64), tuple(f"s{s}" for s in range(n))))
        return found

    async def _played(self, theory: Theory, design: Design, order: np.ndarray, noise: float, seed: int, *key: str | int) -> Data:
        """Subjects whose theory reads history or has a policy of its own, trial by trial."""
        n, parts = len(order), []
        drawn = theory.draw(n, design, generator(seed, "parameters", *key))
        for start in range(0, n, SUBJECTS):
            some = {name: values[start : start + SUBJECTS] for name, values in drawn.items()}
            payload = {
                "code": theory.code, "design": _seen(design), "parameters": some, "samples": theory.samples, "noise": noise,
                "seed": derive_key(seed, "play", *key, start) % 2**31, **_orders(order[start : start + SUBJECTS]),
            }  # fmt: skip
            data = base64.b64decode(await self._request("theories", "play", payload))
            parts.append(np.frombuffer(data, np.uint8).reshape(-1, order.shape[1]))
        return Data(design, order, np.concatenate(parts).astype(np.int64), tuple(f"s{s}" for s in range(n)))

    async def simulate(
        self,
        theory: Theory,
        design: Design,
        n: int,
        seed: int,
        *key: str | int,
        noise: float = 0.0,
        order: np.ndarray | None = None,
    ) -> Data:
        """One of :meth:`simulate_many`."""
        orders = () if order is None else (order,)
        return (await self.simulate_many(theory, [(design, n)], seed, *key, noise=noise, orders=orders))[0]

    async def forced(self, theory: Theory, data: Data, draws: int, seed: int, *key: str | int) -> np.ndarray:
        """(S, T) a theory's probability of B at each trial given what the subject chose before,
        averaged over ``draws`` of its parameters.

        Raises TheoryError.
        """
        if not theory.reads_history:
            table = (await self.tables(theory, [(data.design, draws)], seed, "forced", *key))[0].mean(axis=0)
            return np.asarray(table[data.order])
        drawn, parts = theory.draw(draws, data.design, generator(seed, "parameters", "forced", *key)), []
        size = max(1, CALLS // (draws * data.order.shape[1]))
        for start in range(0, len(data.order), size):
            order, response = (one[start : start + size] for one in (data.order, data.response))
            payload = {
                "code": theory.code,
                "design": _seen(data.design),
                "draws": draws,
                "seed": derive_key(seed, "forced", *key) % 2**31,
                "parameters": drawn,
                "response": _bytes(response),
                **_orders(order),
            }
            parts.append(_floats(await self._request("theories", "forced", payload), order.shape))
        return np.concatenate(parts)

    # -- metrics

    async def measure(self, metric: Metric, data: Data, checked: bool = False) -> tuple[MetricEstimate, list[list[str]]]:
        """A metric on data: its estimate, and notes (problem, sentence) that do not end it. Raises TheoryError.

        A projection is computed here; ``checked`` also runs its source, which must say the same.
        """
        if metric.weights and not checked:
            return projected(data, metric.weights), []
        checked_source(metric.code, ("metric",))
        payload = {
            "code": metric.code, "design": _seen(data.design), "seed": 1, "subjects": list(data.subjects),
            "response": _bytes(data.response), **_orders(data.order),
        }  # fmt: skip
        value = await self._request("metrics", "metric", payload)
        found = MetricEstimate(float(value["value"]), None if value["variance"] is None else float(value["variance"]))
        if metric.weights:
            own = projected(data, metric.weights)
            if (
                abs(own.value - found.value) > 1e-6
                or found.variance is None
                or abs(float(own.variance or 0) - found.variance) > 1e-6
            ):
                raise TheoryError("batch differs", f"the metric's source says {found.value:.6g}, and its weights {own.value:.6g}")
        return found, [[str(kind), str(why)] for kind, why in value["notes"]]

    # -- the sandbox

    async def _request(self, box: str, kind: str, payload: Mapping[str, Any]) -> Any:
        self.requests += 1
        if box not in self._sessions:
            limits = Limits(seconds=5 * self.seconds + 20, memory_bytes=self.memory, processes=16)
            self._sessions[box] = await self._stack.enter_async_context(
                self._sandbox.session(limits=limits, env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
            )
        session = self._sessions[box]
        if box not in self._ready:
            reply = await session.execute(self._source, seconds=60)
            if not reply.ok:
                from ramify.base.errors import InfrastructureError

                raise InfrastructureError(
                    "sandbox", f"theories cannot be run in the sandbox: {reply.error.strip()[-300:] or reply.reason}"
                )
            self._ready.add(box)
        reply = await session.call("request", kind, payload, self.seconds)
        if reply.reason not in ("done", "error"):
            self._ready.discard(box)
            kind_of = {"timeout": "time", "cpu": "time", "memory": "memory"}.get(reply.reason, "died")
            raise TheoryError(kind_of, reply.error.strip()[-300:] or reply.reason)
        answer = reply.value
        if reply.error or not isinstance(answer, dict):
            raise TheoryError("died", reply.error.strip()[-300:] or "it gave no answer")
        if "problem" in answer:
            raise TheoryError(str(answer["problem"]), str(answer["why"])[:400])
        return answer["value"]


def simulate(theory: Theory, design: Design, n: int = 100, seed: int = 0, allow_unsandboxed: bool = False) -> Data:
    """Choices of ``n`` simulated subjects, for callers without an event loop.
    Raises TheoryError, and NeedsError where nothing isolates."""

    async def main() -> Data:
        async with TheoryBench(allow_unsandboxed=allow_unsandboxed) as bench:
            return await bench.simulate(theory, design, n, seed, "simulate")

    return wait_for(main())


def _packages() -> list[str]:
    """Where what theories may import is installed; a box shows it read-only."""
    found = {
        os.path.dirname(os.path.dirname(os.path.realpath(spec.origin)))
        for name in ("numpy", "scipy", "pandas")
        if (spec := find_spec(name)) and spec.origin
    }
    return sorted(found)


def _seen(design: Design) -> dict[str, Any]:
    return {name: value for name, value in design.to_json().items() if name != "rationale"}


def _bytes(array: np.ndarray) -> str:
    return base64.b64encode(array.astype(np.uint8).tobytes()).decode()


def _orders(order: np.ndarray) -> dict[str, Any]:
    return {"order": _bytes(order), "shape": list(order.shape)}


def _floats(text: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.float32).reshape(shape).astype(float)
