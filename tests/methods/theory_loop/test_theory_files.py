"""Files that users bring, broken in every way: read, or refused in one sentence."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.base.codec import to_json
from ramify.base.errors import UserError
from ramify.methods.theory_loop.canonical import CANONICAL
from ramify.methods.theory_loop.confirmation import Registration, read_registration
from ramify.methods.theory_loop.domain import Data, TheoryError, design_file, hilbig, read_design
from ramify.methods.theory_loop.people import read_people
from ramify.methods.theory_loop.theories import read_theory
from tests.hardening.mutations import mutant

DESIGN = hilbig()
CLAIM: dict[str, Any] = to_json(
    Registration("pi_3", CANONICAL["ttb"], {"coin": CANONICAL["coin"]}, DESIGN, 20, 0.05, {"coin": 1.0}, 0).filed()
)
ORDER = DESIGN.orders(2, 0)
READERS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "theory": (".py", CANONICAL["gap-gated"].file(), read_theory),
    "theory in YAML": (".yaml", 'description: x\nparameters:\n  k: "[0, 1]"\npredict: |\n  def predict(p, s, h):\n      return '
                                '[p["k"], 1 - p["k"]]\n', read_theory),
    "design": (".json", json.dumps(DESIGN.to_json()), design_file),
    "people": (".csv", Data(DESIGN, ORDER, ORDER % 2).to_csv(), lambda path: read_people(path, DESIGN)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_broken_files(tmp_path: Path, name: str) -> None:
    suffix, text, read = READERS[name]
    path, rng = tmp_path / f"file{suffix}", random.Random(name)
    path.write_text(text)
    read(path)
    said = []
    for _ in range(120):
        path.write_bytes(mutant(text.encode(), [text.encode()], rng))
        try:
            read(path)
        except UserError as error:
            said.append(str(error))
    assert len(said) > 20
    assert [text for text in said if "\n" in text or str(path) not in text] == []


def test_broken_registrations_and_designs_from_replies() -> None:
    assert to_json(read_registration(json.loads(json.dumps(CLAIM))).filed()) == CLAIM
    rng, refused = random.Random(0), 0
    for _ in range(200):
        name = rng.choice(list(CLAIM))
        odd = rng.choice([None, 0, -1, 1e300, "x", [], {}, [[]], {"a": 1}, True])
        if odd != CLAIM[name]:
            with pytest.raises(UserError):
                read_registration({**CLAIM, name: odd})
        with pytest.raises(UserError):
            read_registration({key: value for key, value in CLAIM.items() if key != name})
        try:
            read_design({**DESIGN.to_json(), rng.choice(list(DESIGN.to_json())): odd})
        except TheoryError:
            refused += 1
    for odd in (None, [], "x", 3):
        with pytest.raises(UserError):
            read_registration(odd)
    assert refused > 50
