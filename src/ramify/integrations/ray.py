"""Ray: attempts and reproductions on a cluster (``--backend ray`` or ``ray:WORKERS``).

Workers are actors that hold a :class:`ramify.rollout.worker.WorkerPlayer`; ramify sends them JSON and bytes. Ray's own protocol,
which carries them, uses pickles: whoever can reach a Ray cluster can run code on it, so it belongs on a network of its own.

``RAY_ADDRESS`` names a running cluster; without it Ray is started on this machine for as long as the call takes.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import socket
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from typing import Any

from ramify.base.errors import CellError, NeedsError, RamifyError
from ramify.base.files import reason
from ramify.base.registry import register
from ramify.rollout.backends import LostWorkerError, Start
from ramify.rollout.worker import THREADS, WorkerPlayer

PATIENCE = 600.0
"""Seconds the cluster has to schedule a worker."""
STORE = 256 * 2**20
"""Bytes of shared memory of a Ray started here: messages are small, weights pass through once."""


def connect() -> tuple[Any, Callable[[], None]]:
    """The ray module, connected, and what to call at the end (nothing where this process was connected already).

    Raises NeedsError where Ray is not installed, RamifyError where the cluster cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray prints what its daemons say to standard output, among the results; a dead worker is reported by us
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise NeedsError("the back end 'ray' needs Ray: pip install 'ramify[ray]'") from None
    if ray.is_initialized():
        return ray, lambda: None
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address:
        _knock(address)
    else:
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": STORE}
    try:
        ray.init(**options)
    except Exception as error:  # the library raises many kinds, all of which mean: no cluster
        raise RamifyError(f"cannot {f'reach Ray at {address}' if address else 'start Ray'}: {error}") from error
    return ray, ray.shutdown


def _knock(address: str) -> None:
    """Raise RamifyError where nobody listens at ``HOST:PORT``: Ray itself tries for minutes before it says so."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if port.isdecimal() and int(port) < 65536:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except OSError as error:
            raise RamifyError(f"cannot reach Ray at {address} (RAY_ADDRESS): {reason(error)}") from error


def _share(ray: Any, workers: int) -> tuple[int, float]:
    """How many workers (0: one a CPU), and the CPUs each requests: one, or less where there are more workers than CPUs."""
    cpus = float(ray.cluster_resources().get("CPU", 1.0))
    workers = workers or max(1, int(cpus))
    return workers, min(1.0, math.floor(cpus / workers * 1e4) / 1e4)


class RayWorker:
    """A worker in an actor."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor

    async def ready(self) -> None:
        """Wait until the actor runs. Raises LostWorkerError."""
        try:
            await self._actor.__ray_ready__.remote()
        except self._ray.exceptions.RayError as error:
            raise LostWorkerError(f"Ray: {type(error).__name__}") from error

    async def call(self, message: bytes) -> bytes:
        """See :class:`ramify.rollout.backends.Worker`."""
        try:
            answer: bytes = await self._actor.answer.remote(message)
        except self._ray.exceptions.RayError as error:
            raise LostWorkerError(f"Ray: {type(error).__name__}") from error
        return answer

    async def close(self) -> None:
        """See :class:`ramify.rollout.backends.Worker`."""
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)


class RayBackend:
    """Actors on a Ray cluster: that of RAY_ADDRESS, else one started on this machine."""

    name = "ray"

    def open(self, workers: int) -> tuple[Start, int, Callable[[], None]]:
        """See :class:`ramify.rollout.backends.Backend`; by default one worker a CPU of the cluster."""
        ray, finish = connect()
        workers, share = _share(ray, workers)
        actor = ray.remote(num_cpus=share, max_restarts=0, scheduling_strategy="SPREAD")(WorkerPlayer)

        async def start(number: int) -> RayWorker:
            worker = RayWorker(ray, actor.remote())
            try:
                await asyncio.wait_for(worker.ready(), PATIENCE)
            except TimeoutError:
                await worker.close()
                raise RamifyError(
                    f"the Ray cluster cannot schedule worker {number} ({share:g} CPUs): use fewer workers"
                ) from None
            return worker

        return start, workers, finish

    def cells(self, workers: int) -> tuple[Callable[..., Generator[tuple[str, Any], None, None]], Callable[[], None]]:
        """What runs the cells of a reproduction on the cluster (a function, and its arguments by key), and what ends it."""
        ray, finish = connect()
        at_once, share = _share(ray, workers)
        task = ray.remote(num_cpus=share, max_retries=2)(_call)

        def run(function: Callable[..., Any], missing: Mapping[str, Any]) -> Generator[tuple[str, Any], None, None]:
            waiting, under_way = list(missing.items()), dict[Any, str]()
            failure: CellError | None = None
            while under_way or (waiting and failure is None):
                while waiting and len(under_way) < at_once and failure is None:
                    key, kwargs = waiting.pop(0)
                    under_way[task.remote(function, dict(kwargs))] = key
                (done,), _rest = ray.wait(list(under_way), num_returns=1)
                key = under_way.pop(done)
                try:
                    value = ray.get(done)
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None) or error
                    failure = CellError(f"cell {key!r} failed: {type(cause).__name__}: {cause}")
                    failure.__cause__ = error
                    continue
                yield key, value
            if failure is not None:
                raise failure

        return run, finish


def _call(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    """One cell, in a worker of the cluster."""
    os.environ.update(dict.fromkeys(THREADS, "1"))
    return function(**kwargs)


register("backend", "ray")(RayBackend())
