"""Who answers a run: the name that a model's server answers under is kept, so that a change is noticed across calls, too."""

from __future__ import annotations

from typing import Any

from ramify.trace.db import Run

_KIND = "answered"


class Answering:
    """What ``run`` knows of the server behind ``model``, if it is one. Middleware is looked through."""

    def __init__(self, run: Run, model: Any) -> None:
        while (inner := getattr(model, "inner", None)) is not None:
            model = inner
        self.run, self.model = run, model if hasattr(model, "answered") else None
        self._kept = ""
        if self.model is not None:
            self._kept = next((str(entry.payload) for entry in run.journal(_KIND, self._key)), "")
            self.model.answered = self._kept

    @property
    def _key(self) -> str:
        return str(self.model.identity.weights)  # type: ignore[union-attr]  # called where there is a model

    def keep(self) -> None:
        """Store the name of who answered first."""
        if self.model is not None and not self._kept and self.model.answered:
            self._kept = self.model.answered
            self.run.log(_KIND, self._key, self._kept)
