"""Runs a package's own tests with one of its modules replaced by candidate.py.
Inside the sandbox only; prints test name -> passed."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import inspect
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

TARGET, SECONDS = sys.argv[1], 5


class CandidateFinder(importlib.abc.MetaPathFinder):
    """Finds the candidate in the place of the module."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """The candidate's spec, None of any other module."""
        return importlib.util.spec_from_file_location(name, os.path.abspath("candidate.py")) if name == TARGET else None


def stop(*_: Any) -> None:
    """End what takes too long."""
    raise TimeoutError


def tests(module: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every test that needs no fixture and is not parametrised."""
    for name, value in sorted(vars(module).items()):
        if name.startswith("test_") and inspect.isfunction(value) and not hasattr(value, "pytestmark"):
            if not inspect.signature(value).parameters:
                yield name, value
        elif name.startswith("Test") and inspect.isclass(value) and not hasattr(value, "pytestmark"):
            for own in sorted(dir(value)):
                function = getattr(value, own)
                plain = inspect.isfunction(function) and list(inspect.signature(function).parameters) == ["self"]
                if own.startswith("test") and plain and not hasattr(function, "pytestmark"):
                    yield f"{name}.{own}", method(value, own)


def method(kind: Any, name: str) -> Callable[[], Any]:
    """A test of a class, with what the class sets up."""

    def run() -> None:
        getattr(kind, "setup_class", lambda: None)()
        one = kind()
        getattr(one, "setup_method", lambda: None)()
        getattr(one, name)()

    return run


def passes(function: Callable[[], Any]) -> bool:
    """Whether it ends in time without raising."""
    signal.alarm(SECONDS)
    try:
        function()
    except BaseException:
        return False
    finally:
        signal.alarm(0)
    return True


def main() -> None:
    """Run the tests of the modules that the command line names."""
    sys.meta_path.insert(0, CandidateFinder())
    signal.signal(signal.SIGALRM, stop)
    found: dict[str, bool] = {}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for name in sys.argv[2:]:
            if passes(partial(importlib.import_module, name)):
                found |= {f"{name}.{test}": passes(function) for test, function in tests(sys.modules[name])}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
