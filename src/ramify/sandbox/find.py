"""The sandbox to use: the one named, or the best that works here."""

from __future__ import annotations

from typing import Any

from ramify.base.errors import NeedsError
from ramify.base.registry import get
from ramify.sandbox.docker import DockerSandbox
from ramify.sandbox.launch import refusal
from ramify.sandbox.process import ProcessSandbox
from ramify.sandbox.protocol import Sandbox


def find_sandbox(name: str | None = None, allow_unsandboxed: bool = False, **options: Any) -> Sandbox:
    """The sandbox ``name`` (``process``, ``docker``, or a plug-in's), made with ``options``;
    without a name the first that isolates.

    Raises NeedsError (exit 4) where none does, unless ``allow_unsandboxed``: then processes with limits only.
    """
    if name is not None and name != "process":
        sandbox: Sandbox = get("sandbox", name)(**options)
        return sandbox
    process = ProcessSandbox(allow_unsandboxed=allow_unsandboxed, **options)
    if name == "process":
        process.server()
        return process
    if process.isolates:
        return process
    try:
        docker = DockerSandbox()
        docker.check()
        return docker
    except NeedsError as error:
        if allow_unsandboxed:
            return process
        try:
            process.server()
        except NeedsError as first:
            raise NeedsError(f"{first}; docker: {error}") from None
        raise refusal(str(error)) from None
