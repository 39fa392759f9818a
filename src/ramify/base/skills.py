"""Agent Skills (https://agentskills.io/specification): a folder with SKILL.md, YAML between two lines of --- and Markdown."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ramify.base.errors import UserError
from ramify.base.files import refusal

FILE = "SKILL.md"
LONGEST_NAME, LONGEST_DESCRIPTION, LONGEST_COMPATIBILITY = 64, 1024, 500
"""Characters that the specification allows."""
_HEAD = re.compile(r"---\n.*?\n---\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill: what stands in its folder. Files are text by their path in the folder, SKILL.md not among them."""

    name: str
    description: str
    """What it does and when to use it."""
    body: str
    license: str = ""
    compatibility: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    files: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Raises UserError on a name or a description that the specification does not allow."""
        if self.name != skill_name(self.name) or not self.description.strip():
            raise UserError(f"'{self.name}' is not a skill's name, or it has no description")

    def text(self) -> str:
        """SKILL.md. Every value of its head is a quoted text."""
        head = {"name": self.name, "description": _short(self.description, LONGEST_DESCRIPTION)}
        head |= {"license": self.license} if self.license else {}
        head |= {"compatibility": _short(self.compatibility, LONGEST_COMPATIBILITY)} if self.compatibility else {}
        lines = [f"{name}: {_quoted(value)}" for name, value in head.items()]
        if self.metadata:
            lines += ["metadata:", *(f"  {name}: {_quoted(value)}" for name, value in self.metadata.items())]
        return "\n".join(["---", *lines, "---", "", self.body.strip(), ""])

    def contents(self) -> dict[str, str]:
        """Each file of the folder, by its path in it."""
        return {FILE: self.text(), **self.files}


def skill_name(text: str) -> str:
    """``text`` as the name of a skill: lower-case letters, digits and single hyphens, 64 at most. "" where nothing is left."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:LONGEST_NAME].rstrip("-")


def split_skill(text: str) -> tuple[str, str]:
    """The head of a skill's text, with its lines of ---, and the rest; "" and all of it where there is no head."""
    head = _HEAD.match(text)
    at = head.end() if head else 0
    return text[:at], text[at:]


def folder_hash(contents: Mapping[str, str | bytes]) -> str:
    """SHA-256 over the paths and bytes of a folder's files."""
    sha = hashlib.sha256()
    for name in sorted(contents):
        value = contents[name]
        raw = value.encode() if isinstance(value, str) else value
        sha.update(f"{name}\0{len(raw)}\0".encode())
        sha.update(raw)
    return sha.hexdigest()


def folder_contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its path in it; of a link its target, as no file that is written here is one.
    Raises UserError where it cannot be read."""
    files: dict[str, bytes] = {}
    try:
        for file in sorted(folder.rglob("*")):
            name = file.relative_to(folder).as_posix()
            if file.is_symlink():
                files[f"{name} ->"] = str(file.readlink()).encode()
            elif file.is_file():
                files[name] = file.read_bytes()
    except OSError as error:
        raise refusal(f"cannot read {folder}", error) from None
    return files


def _quoted(value: str) -> str:
    """A value as YAML's quoted text, on one line."""
    return json.dumps(" ".join(value.split()), ensure_ascii=False)


def _short(text: str, most: int) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= most else f"{plain[: most - 3].rstrip()}..."
