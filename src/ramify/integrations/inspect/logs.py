"""Logs of inspect (``inspect_ai``) into a run: each sample one tree, its epochs attempts in it.

Samples are read one at a time, their events and stores left out, so memory holds one sample. What a log says is checked by
inspect's own records (which bring older logs up to date), after its size was: a log is a third-party file.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.base.files import reason
from ramify.base.secrets import redact
from ramify.integrations.inspect.writer import checked, require_inspect, worth, write_log
from ramify.trace.db import Run
from ramify.trace.foreign import Thread, end_attempt, import_records
from ramify.trace.formats import Reader, Writer
from ramify.trace.lines import at_place
from ramify.trace.message import FIELDS, Message, as_text, compacted, content_of, plain
from ramify.trace.node import Provenance, Score
from ramify.trace.notes import unread

#: A sample that unpacks to more is refused, and so is one that unpacks to more than a thousand times its size: a zip bomb.
MAX_SAMPLE, MAX_RATIO, SMALL = 1 << 28, 1000, 1 << 24
#: Parts of a sample that are not read: they are as large as the rest together and repeat the messages.
_LEFT_OUT = ("events", "events_data", "store", "timelines", "error_retries")
_LIMITS = {"operator": "cancelled", "custom": "truncated", "context": "length"}
_FINISHED = {"stop": "stop", "max_tokens": "length", "model_length": "length", "tool_calls": "stop", "content_filter": "stop"}
_MESSAGE = {"function", "metadata", "tool_call_id", "tool_calls", "source", "model", "error"}
_ABOUT = {
    *("uuid", "started_at", "completed_at", "total_time", "working_time", "turn_count"),
    *("model_usage", "role_usage", "error", "limit", "metadata"),
}


def read_log(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from an inspect log, ``.eval`` or ``.json``. Returns how many samples.

    Raises NeedsError where inspect is not installed, UserError naming file, sample and field; nothing is left in ``folder`` then.
    """
    logs = require_inspect()
    head, samples = header_and_samples(path)
    version = head.get("version")
    newest = logs.EvalLog.model_fields["version"].default
    if type(version) is not int or not 1 <= version <= newest:
        raise UserError(f"{path}: 'version' is {version!r}; the installed inspect_ai reads logs of version 1 to {newest}")
    header = checked(f"{path}: header", lambda: logs.EvalLog.model_validate(head, context={"deserializing": True}))
    with at_place(f"{path}: header"):  # what is nested too deep is refused as it is written
        importer = _Samples(header, logs)
        summary = header.model_dump(
            mode="json", exclude_none=True, include={"version", "status", "eval", "plan", "results", "stats", "error"}
        )
    records = ((i, sample) for i, sample in enumerate(samples, 1))
    try:
        return import_records(path, folder, "inspect", importer.add, records, redact(plain(summary)))
    except UserError as error:
        if str(error) != f"{path} holds no record":
            raise
        why = f" ({header.error.message})" if header.error else ""
        raise UserError(f"{path} holds no sample: the evaluation's status is '{header.status}'{why}") from None


class _Samples:
    """Turns samples into trees. Remembers which it has seen, a few words each."""

    def __init__(self, header: Any, logs: Any) -> None:
        self.header, self.logs = header, logs
        self._tasks: dict[str, dict[str, Any]] = {}
        self._seen: set[tuple[str, int]] = set()
        config = header.eval.model_generate_config.model_dump(mode="json", exclude_none=True)
        config |= header.plan.config.model_dump(mode="json", exclude_none=True)
        self._settings = redact(plain(config | ({"args": header.eval.model_args} if header.eval.model_args else {})))
        self._seed = config.get("seed") or 0

    def add(self, run: Run, raw: dict[str, Any], where: str, number_: int) -> None:
        who = f"{where}: sample {raw.get('id')!r}, epoch {raw.get('epoch')!r}"
        for name in _LEFT_OUT:
            raw.pop(name, None)
        unread(raw, self.logs.EvalSample.model_fields, "sample")
        for message in raw["messages"] if isinstance(raw.get("messages"), list) else ():
            unread(message if isinstance(message, Mapping) else {}, _MESSAGE | FIELDS, "message")
        sample = checked(who, lambda: self.logs.EvalSample.model_validate(raw, context={"deserializing": True}))
        sample = checked(who, lambda: self.logs.resolve_sample_attachments(sample, "full"))
        if (str(sample.id), sample.epoch) in self._seen:
            raise UserError(f"{who} is there twice")
        self._seen.add((str(sample.id), sample.epoch))
        tree = self._tree(run, sample)
        thread, by = Thread(run, tree, sample.epoch), None
        for at, message in enumerate(sample.messages):
            sampled = message.role == "assistant" and message.source != "input"
            fields = self._sampled(run, message.model or sample.output.model) if sampled else {}
            by = fields.get("provenance", by)
            last = at == len(sample.messages) - 1
            fields |= {"stop": _stop(sample), "about": {"sample": self._about(sample, tree)}} if last else {}
            thread.hang(as_message(message, f"{who}: message {at}"), sampled, last, **fields)
        if not sample.messages:
            thread.hang(Message("user", "", {"sample": self._about(sample, tree)}), False, True, stop=_stop(sample))
        end_attempt(run, thread.node, provenance=by)
        for name, given in (sample.scores or {}).items():
            run.add(*_scores(thread.node.id, name, given))

    def _tree(self, run: Run, sample: Any) -> str:
        """The tree of a sample. Its task is that of the first epoch;
        ids 1 and "1" are two samples, which inspect's files mix up."""
        name = str(sample.id) or "sample"
        if name not in self._tasks:
            record = sample.model_dump(
                mode="json", include={"input", "target", "choices", "files", "setup", "sandbox"}, exclude_none=True
            )
            self._tasks[name] = {"id": sample.id, "data": plain(record)}
        elif self._tasks[name]["id"] != sample.id:
            raise UserError(f"two samples are called {name!r}, one as text and one as a number")
        run.add_tree(name, self._tasks[name])  # again and again: the sample that came first may have been a bad one
        return name

    def _sampled(self, run: Run, model: str | None) -> dict[str, Any]:
        provenance = Provenance(model or self.header.eval.model, "", self._settings, self._seed)
        run.add(provenance)
        return {"provenance": provenance.hash}

    def _about(self, sample: Any, tree: str) -> dict[str, Any]:
        about = sample.model_dump(mode="json", include=_ABOUT, exclude_none=True)
        output = sample.output.model_dump(mode="json", include={"model", "usage", "time", "error"}, exclude_none=True)
        found: dict[str, Any] = plain(
            {"id": sample.id, "epoch": sample.epoch, "messages": len(sample.messages), **about}
            | {"output": output | {"stop_reason": sample.output.stop_reason if sample.output.choices else None}}
        )
        (found.get("error") or {}).pop("traceback_ansi", None)
        return found


def _stop(sample: Any) -> str:
    if sample.error is not None:
        return "failed"
    if sample.limit is not None:
        return _LIMITS.get(sample.limit.type, "budget")
    last = sample.messages[-1].role if sample.messages else ""
    return _FINISHED.get(sample.output.stop_reason, "") if sample.output.choices and last == "assistant" else ""


def _parts(content: Any) -> Any:
    return content if isinstance(content, str) else [part.model_dump(mode="json", exclude_none=True) for part in content]


def as_message(message: Any, spot: str) -> Message:
    """A message of inspect, its tool calls in OpenAI's form."""
    data = message.model_dump(mode="json", exclude_none=True, exclude={"role", "content", "tool_calls", "function"})
    if not isinstance(message.content, str):
        data["content"] = _parts(message.content)
    if getattr(message, "function", None):
        data["name"] = message.function
    if calls := getattr(message, "tool_calls", None):
        data["tool_calls"] = [
            {"id": call.id, "type": call.type, "function": {"name": call.function, "arguments": as_text(call.arguments)}}
            | ({"parse_error": call.parse_error} if call.parse_error else {})
            for call in calls
        ]
    return Message(message.role, content_of(_parts(message.content), spot)[0], plain(data))


def as_openai(source: Any, spot: str = "a message of inspect") -> dict[str, Any]:
    """A message of inspect in OpenAI's form; a provider's own compaction in it stays a part of its content."""
    message = as_message(source, spot)
    parts = [part for part in message.data.get("content") or () if isinstance(part, dict)]
    native = [part for part in parts if compacted(part) is not None]
    texts = [part for part in parts if part.get("type") == "text"]
    return message.to_openai() | ({"content": [*texts, *native]} if native else {})


def _scores(node: str, name: str, score: Any) -> Iterator[Score]:
    """inspect's score as scores: one that keeps all of it, and one for each number of a composite one."""
    whole = plain(score.model_dump(mode="json", exclude_none=True) | {"value": score.value})
    yield Score(node, name, worth(score.value), "score", evidence={"score": whole})
    parts = score.value.items() if isinstance(score.value, Mapping) else ()
    for key, value in parts:
        yield Score(node, name, worth(value), f"score.{key}")


# Files


def header_and_samples(path: Path) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """The header of a log and its samples as JSON, one at a time.
    Raises UserError on what is not a log, damaged, or too large."""
    return _zipped(path) if path.suffix == ".eval" or zipfile.is_zipfile(path) else _document(path)


def _zipped(path: Path) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """The header of an ``.eval`` file and its samples, one at a time. A log that was cut off has its header where it began."""
    require_inspect()  # teaches zipfile the compression of these files
    with _opened(path) as archive:
        names = archive.NameToInfo
        header = next((name for name in ("header.json", "_journal/start.json") if name in names), None)
        if header is None:
            raise UserError(f"{path} is not an inspect log: it holds neither header.json nor _journal/start.json")
        head = _member(archive, header, path)
    return head, _members(path)


def _members(path: Path) -> Iterator[dict[str, Any]]:
    with _opened(path) as archive:
        for name in archive.NameToInfo:  # of members written twice, the last
            if name.startswith("samples/") and name.endswith(".json"):
                yield _member(archive, name, path)


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error
    except (ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        raise UserError(f"{path} is not a readable zip: {error}") from error


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> dict[str, Any]:
    """A member's JSON. Raises UserError when it unpacks to too much, is damaged, or is not JSON object."""
    info = archive.NameToInfo[name]
    if info.file_size > MAX_SAMPLE or (info.file_size > SMALL and info.file_size > MAX_RATIO * info.compress_size):
        raise UserError(f"{path}: {name} would unpack from {info.compress_size} to {info.file_size} bytes, more than is allowed")
    raw = bytearray()
    try:
        with archive.open(info) as token_values:
            while piece := token_values.read(
                1 << 16
            ):  # in pieces: a header that lies of the size must not decide how much is unpacked
                raw += piece
    except Exception as error:  # whatever a decompressor makes of damaged bytes
        raise UserError(f"{path}: {name} is damaged: {error}") from error
    if len(raw) != info.file_size:
        raise UserError(f"{path}: {name} is damaged: it ends after {len(raw)} of {info.file_size} bytes")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: {name} is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: {name} holds no object")
    return found


def _document(path: Path) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """The header of a ``.json`` log (what stands before its samples) and its samples, one at a time."""
    import ijson  # type: ignore[import-untyped,unused-ignore]

    head = ijson.ObjectBuilder()
    with _parsing(path) as file:
        for prefix, event, value in ijson.parse(file, use_float=True):
            if (prefix, event, value) == ("", "map_key", "samples"):
                break
            head.event(event, value)
    found = getattr(head, "value", None)
    if not isinstance(found, dict):
        raise UserError(f"{path} is not an inspect log: it holds no JSON object")
    return found, _streamed(path)


def _streamed(path: Path) -> Iterator[dict[str, Any]]:
    import ijson

    with _parsing(path) as file:
        for number, sample in enumerate(ijson.items(file, "samples.item", use_float=True), 1):
            if not isinstance(sample, dict):
                raise UserError(f"{path}: item {number} of 'samples' is not an object")
            for score in sample["scores"].values() if isinstance(sample.get("scores"), dict) else ():
                if isinstance(score, dict):
                    score["value"] = _numbers(score.get("value"))
            yield sample


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    return float(value) if value in ("nan", "inf", "-inf") else value


@contextmanager
def _parsing(path: Path) -> Iterator[NamedNumbers]:
    import ijson

    try:
        with path.open("rb") as file:
            yield NamedNumbers(file)
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error
    except (ijson.JSONError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({str(error).splitlines()[0]})") from error


class NamedNumbers:
    """A file of JSON as Python writes it, with NaN and infinities as the text "nan", "inf", "-inf":
    streaming readers take no other."""

    _PIECE = re.compile(rb'"(?:[^"\\]+|\\.)*("?)|NaN|-?Infinity', re.DOTALL)
    _TAIL = re.compile(rb"[-A-Za-z]{1,9}\Z")
    _NAMES: Mapping[bytes, bytes] = {b"NaN": b'"nan"', b"Infinity": b'"inf"', b"-Infinity": b'"-inf"'}

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inside = False
        self._held = self._ready = b""

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes; none at the end of the file."""
        while not self._ready and (raw := self._file.read(1 << 16)):
            self._ready = self._piece(self._held + raw, last=False)
        if not self._ready and self._held:
            self._ready, self._held = self._piece(self._held, last=True), b""
        given = self._ready if size < 0 else self._ready[:size]
        self._ready = self._ready[len(given) :]
        return given

    def _piece(self, text: bytes, last: bool) -> bytes:
        cut = len(text)  # what the next piece may complete is held back: an escape, a name
        if not last and (cut - len(text.rstrip(b"\\"))) % 2:
            cut -= 1
        elif not last and (tail := self._TAIL.search(text, max(0, cut - 9))) is not None:
            cut = tail.start()
        text, self._held = text[:cut], text[cut:]
        if b"NaN" not in text and b"Infinity" not in text:
            quotes = text.replace(rb"\\", b"").replace(rb"\"", b"").count(b'"')
            self._inside ^= quotes % 2 == 1
            return text
        before = b'"' if self._inside else b""  # continues inside a text: opened here again, and taken off the result
        self._inside = False
        return self._PIECE.sub(self._name, before + text)[len(before) :]

    def _name(self, found: re.Match[bytes]) -> bytes:
        whole = found[0]
        if whole[:1] == b'"':
            self._inside = not found[1]
            return whole
        return self._NAMES[whole]


def _matches(path: Path, first: Mapping[str, Any] | None) -> bool:
    """An ``.eval`` file by its name; a JSON log by how inspect begins one."""
    if path.suffix == ".eval":
        return path.is_file()
    if first is not None:
        return {"version", "status", "eval"} <= first.keys()
    try:
        with path.open("rb") as file:
            start = b"".join(file.read(4096).split())
    except OSError:
        return False
    return start.startswith(b'{"version":') and b'"status":' in start and b'"eval":{' in start


registry.register("reader", "inspect")(
    Reader(
        "inspect", "Logs of inspect_ai, .eval or .json: a tree for each sample, an attempt for each epoch.", _matches, read_log
    )
)
registry.register("writer", "inspect")(
    Writer(
        "inspect",
        "a log that inspect_ai opens: a sample for each tree, an epoch for each attempt, scores as scores",
        write_log,
        (".eval",),
        {"task": "name of the task the log is of (default: the run's)"},
    )
)
