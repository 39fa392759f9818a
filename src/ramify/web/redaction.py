"""What ``--redact`` takes out of what is recorded: addresses, keys and numbers that have a shape. It knows no names.

Covered: e-mail addresses; keys of the shapes below; what looks like a telephone or card number; logins in URLs; values of this
process's own secret variables. **Not covered**: names of people and firms, postal addresses, dates of birth, keys of other
shapes, anything spelled out or split by markup, text in images.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ramify.base.secrets import redact, without_keys

_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_NUMBER = re.compile(r"(?<![\w.,:/-])\+?\(?\d(?:[ ().\-/]{0,2}\d){8,18}(?![\w:]|[.,]\d)")


def scrub(value: Any) -> Any:
    """A JSON value with what is covered taken out of every text in it, names of fields left as they are."""
    if isinstance(value, Mapping):
        return {name: scrub(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(inner) for inner in value]
    if not isinstance(value, str):
        return value
    value = _EMAIL.sub("[e-mail]", without_keys(redact(value)))
    return _NUMBER.sub(lambda found: "[number]" if _grouped(found[0]) else found[0], value)


def _grouped(text: str) -> bool:
    """Whether digits look dialled or charged: with a plus, with separators,
    or 13 to 19 in a row that pass a card's check digit."""
    digits = [int(c) for c in text if c.isdecimal()]
    if not text.isdecimal():
        return True
    doubled = [d if i % 2 == 0 else sum(divmod(2 * d, 10)) for i, d in enumerate(reversed(digits))]
    return len(digits) >= 13 and sum(doubled) % 10 == 0
