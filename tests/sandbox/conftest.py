from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tight import SHORT

from ramify.sandbox.process import ProcessSandbox, strength
from ramify.sandbox.protocol import Outcome


@pytest.fixture(scope="session")
def sandbox() -> ProcessSandbox:
    made = ProcessSandbox()
    if not made.isolates:
        pytest.skip("this kernel or container forbids namespaces: THE PROCESS SANDBOX AND ITS ATTACKS ARE NOT TESTED")
    layers = strength()
    for name in ("isolation", "files", "processes", "users", "limits"):  # the attacks are real: never let them loose
        if not layers[name].works:
            pytest.exit(f"the sandbox's '{name}' layer does not hold: {layers[name].means}", returncode=1)
    return made


@pytest.fixture
def attack(sandbox: ProcessSandbox) -> Callable[..., Outcome]:
    """Run Python code, given as text, with tight limits."""

    def run(code: str, **fields: Any) -> Outcome:
        fields.setdefault("limits", SHORT)
        return asyncio.run(sandbox.run(["python", "-S", "-c", code], **fields))

    return run
