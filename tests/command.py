"""The command line, called in this process."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from ramify.cli.main import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.out.splitlines()[-1]))


class Verb:
    """Calls the command line and returns what it did."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: object) -> Outcome:
        self._capsys.readouterr()
        code = main([str(arg) for arg in args])
        return Outcome(code, *self._capsys.readouterr())

    def says(self, *args: object) -> str:
        """What a call prints that succeeds."""
        code, out, err = self(*args)
        assert code == 0, (out, err)
        return out

    def json(self, *args: object, code: int = 0) -> dict[str, Any]:
        """The record that a call with ``--json`` prints last."""
        done = self(*args, "--json")
        assert done.code == code, done
        return done.json

    def refused(self, *args: object) -> str:
        """The one sentence of a call that is bad input."""
        code, out, err = self(*args)
        assert (code, out) == (2, ""), (out, err)
        assert err.startswith("ramify: ")
        assert err.count("\n") == 1
        return err.removeprefix("ramify: ").rstrip("\n")
