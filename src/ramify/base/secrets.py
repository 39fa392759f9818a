"""Redacts secrets from everything that is stored or shown: settings, errors, records of other tools."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

REDACTED = "[redacted]"
_SECRET_KEY = re.compile(
    r"(?:^|[_.-])(?:api_?key|access_?key|private_?key|secret|passwd|password|credentials?|authorization|bearer"
    r"|(?:api|access|auth|bearer|hf|refresh|session)_?token)$|^token$",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")
_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:sk|pk|rk)[-_][\w-]{16,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[opusr]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"
    r"|\bhf_\w{20,}|\bxox[abprs]-[\w-]{10,}|\bAIza[\w-]{30,}|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|(?i:\bbearer )[\w.~+/=-]{16,}",
    re.DOTALL,
)
_MIN_SECRET = 8  # shorter environment values ("1", "true") would redact ordinary text


def redact(value: Any, key: str = "") -> Any:
    """``value`` without secrets: entries under secret-looking keys, logins inside URLs,
    and values of secret environment variables."""
    if isinstance(value, Mapping):
        return {k: redact(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(v, key) for v in value]
    if value not in (None, "") and _SECRET_KEY.search(key):
        return REDACTED
    return _URL_LOGIN.sub(REDACTED + "@", hidden(value)) if isinstance(value, str) else value


def hidden(text: str) -> str:
    """``text`` without the values of secret environment variables, as they are and as JSON writes them (a key of several lines, a
    quote in a password), also inside a text of JSON that is itself in JSON."""
    for name, secret in os.environ.items():
        if len(secret) >= _MIN_SECRET and _holds_secret(name):
            for written in _written(secret):
                text = text.replace(written, REDACTED)
    return text


@lru_cache(maxsize=1024)
def _holds_secret(variable: str) -> bool:
    return _SECRET_VARIABLE.search(variable.upper()) is not None


@lru_cache(maxsize=64)
def _written(secret: str) -> tuple[str, ...]:
    """A secret in JSON in JSON, in JSON, and as it is, the longest first."""
    forms = {text for text in (secret, secret.rstrip("\n")) if len(text) >= _MIN_SECRET}
    for _ in range(2):
        forms |= {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for text in forms for ascii_only in (False, True)}
    return tuple(sorted(forms, key=lambda text: (-len(text), text)))


def without_keys(text: str, instead: str = "[key]") -> str:
    """``text`` with keys of known shapes (OpenAI, AWS, GitHub, GitLab, Hugging Face, Slack,
    Google, JWT, PEM, bearer) replaced."""
    return _KEY.sub(instead, text)
