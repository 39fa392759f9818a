"""A model server's address, request limits and API key.

The key comes from the environment (RAMIFY_API_KEY, else OPENAI_API_KEY, or ANTHROPIC_API_KEY for that protocol), is sent in one
header and appears in no error, record or log. A URL that carries a secret is refused, because a run stores the URL."""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from ramify.base.errors import UserError

_OPTIONS = ("tokenizer", "rate", "concurrent", "timeout", "retries", "answers")
_PASSED_ON = ("api-version",)
ENDPOINTS = "RAMIFY_ENDPOINTS"
"""Variable with the addresses of this machine's endpoints, between spaces or commas."""
PLAIN_HTTP = "RAMIFY_ALLOW_PLAIN_HTTP"
HIDDEN = "***"
_SHORT, _ESCAPE = 8, 6
_ESCAPED = re.compile(r"\\u00([0-9a-fA-F]{2})|\\(.)")


def named_endpoints() -> list[str]:
    """The addresses in :data:`ENDPOINTS`, in order."""
    return os.environ.get(ENDPOINTS, "").replace(",", " ").split()


@dataclass(frozen=True)
class EndpointLimits:
    """Of one endpoint. Times in seconds."""

    connect: float = 10.0
    read: float = 300.0
    """Longest wait for the answer or the next piece of it."""
    total: float = 900.0
    """Longest time of one request, from sending to the last byte."""
    max_bytes: int = 64 << 20
    retries: int = 4
    """Retries of transient failures."""
    base: float = 0.5
    """Retry k waits a uniformly sampled part of ``base * 2**k`` seconds, never more than ``longest``."""
    longest: float = 60.0
    """Also the longest wait a server may request."""
    rate: float = 0.0
    """Requests a second; 0 sets no limit."""
    concurrent: int = 32


@dataclass(frozen=True)
class Endpoint:
    """A checked URL without secrets. ``url`` has no query; ``query`` is sent along; ``options`` are ramify's own."""

    url: str
    query: Mapping[str, str]
    options: Mapping[str, str]

    @property
    def host(self) -> str:
        """Host and port, for sentences."""
        return urlsplit(self.url).netloc

    @property
    def loopback(self) -> bool:
        """Whether the host is this machine."""
        name = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return name == "localhost" or name.endswith(".localhost")

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Check a URL; an empty path becomes ``/v1``. Raises UserError, in which no part that may be secret is repeated."""
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
            query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError:
            raise UserError("the endpoint's URL cannot be read; it looks like http://127.0.0.1:8000/v1") from None
        if parts.scheme not in ("http", "https") or not host or re.search(r"[\x00-\x20\x7f]", text):
            raise UserError("the endpoint's URL must look like http://127.0.0.1:8000/v1 or https://HOST/v1")
        if parts.username is not None or parts.password is not None:
            raise UserError(f"the URL of {host} carries a name or password; put the key into the variable RAMIFY_API_KEY instead")
        unknown = [name for name, _ in query if name not in (*_OPTIONS, *_PASSED_ON)]
        if unknown or parts.fragment:
            what = f"the field '{unknown[0][:40]}'" if unknown else "a fragment"
            known = ", ".join((*_OPTIONS, *_PASSED_ON))
            raise UserError(f"the URL of {host} carries {what}; it may carry {known}, and a key belongs into RAMIFY_API_KEY")
        netloc = (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
        if (given := dict(query).get("answers", "any")) != "any":
            raise UserError(f"the URL of {host} has answers={given[:20]!r}; answers=any takes whatever model answers")
        url = urlunsplit((parts.scheme, netloc, parts.path.rstrip("/") or "/v1", "", ""))
        return cls(url, {k: v for k, v in query if k in _PASSED_ON}, {k: v for k, v in query if k in _OPTIONS})

    def limits(self) -> EndpointLimits:
        """The limits that the URL's options set. Raises UserError on one that is not a positive number."""
        numbers: dict[str, float] = {}
        for name in ("rate", "concurrent", "timeout", "retries"):
            if name not in self.options:
                continue
            try:
                number = float(self.options[name])
            except ValueError:
                number = math.nan
            whole = name in ("concurrent", "retries")
            if not (math.isfinite(number) and number >= 0) or (number == 0 and name != "retries") or (whole and number % 1):
                raise UserError(f"the URL of {self.host} has {name}={self.options[name][:20]!r}, which is not a positive number")
            numbers[name] = number
        limits = EndpointLimits(
            rate=numbers.get("rate", EndpointLimits.rate), concurrent=int(numbers.get("concurrent", EndpointLimits.concurrent))
        )
        limits = replace(limits, retries=int(numbers.get("retries", limits.retries)))
        return replace(limits, read=numbers["timeout"], total=numbers["timeout"]) if "timeout" in numbers else limits


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else match[2]


class Secret:
    """A text that is hidden in representations; :meth:`reveal` returns it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return "***"

    def reveal(self) -> str:
        """The text."""
        return self._text

    @property
    def hidden(self) -> bool:
        """Whether it must be hidden: one of fewer than eight characters is a placeholder, not a secret."""
        return len(self._text) >= _SHORT

    def scrub(self, text: str) -> str:
        """``text`` without the secret, as it is or with characters escaped as JSON escapes them."""
        if not self.hidden:
            return text
        text = text.replace(self._text, HIDDEN)
        return text if "\\" not in text else self._escaped.sub(HIDDEN, text)

    def scrubbed(self, value: Any) -> Any:
        """A JSON value without the secret in any of its texts and names: ``value`` itself where there is none."""
        if not self.hidden:
            return value
        if isinstance(value, str):
            return self.scrub(value)
        if isinstance(value, dict):
            pairs = [(self.scrub(name), self.scrubbed(inner)) for name, inner in value.items()]
            same = all(name is was and inner is value[was] for was, (name, inner) in zip(value, pairs, strict=True))
            return value if same else dict(pairs)
        if isinstance(value, list):
            clean = [self.scrubbed(inner) for inner in value]
            return value if all(inner is was for inner, was in zip(clean, value, strict=True)) else clean
        return value

    def begun(self, text: str) -> int:
        """How many characters at the end of ``text`` may be the beginning of the secret."""
        if not self.hidden:
            return 0
        plain, raw = re.sub(r"\\(?:u[0-9a-fA-F]{0,3})?$", "", text), text  # an escape that is cut off may be any character
        cut = len(raw) - len(plain)
        start = max(0, len(plain) - _ESCAPE * (len(self._text) - 1))
        for at in range(start, len(plain)):
            if plain[at] in (self._text[0], "\\") and self._text.startswith(_ESCAPED.sub(_unescaped, plain[at:])):
                return len(raw) - at
        return cut

    @cached_property
    def _escaped(self) -> re.Pattern[str]:
        return re.compile("".join(f"(?:\\\\?{re.escape(c)}|\\\\u00(?i:{ord(c):02x}))" for c in self._text))


def read_key(endpoint: Endpoint, protocol: str = "") -> Secret:
    """The key for an endpoint that speaks ``protocol``; an empty RAMIFY_API_KEY means none.
    Raises UserError where it would cross a network in the clear."""
    other = "ANTHROPIC_API_KEY" if protocol == "anthropic" else "OPENAI_API_KEY"
    key = Secret(os.environ.get("RAMIFY_API_KEY", os.environ.get(other, "")).strip())
    if key and not re.fullmatch(r"[\x21-\x7e]+", key.reveal()):
        raise UserError(f"the key in RAMIFY_API_KEY (or {other}) holds characters that no HTTP header may hold")
    if key and sent_in_clear(endpoint):
        raise UserError(
            f"the key would go to {endpoint.host} unencrypted: use https, or set RAMIFY_API_KEY= for a server that needs none, "
            f"or {PLAIN_HTTP}=1 to send it all the same"
        )
    return key


def sent_in_clear(endpoint: Endpoint) -> bool:
    """Whether a key would cross a network unencrypted, which the environment does not allow."""
    plain = endpoint.url.startswith("http:") and not endpoint.loopback
    return plain and os.environ.get(PLAIN_HTTP, "0") in ("", "0")
