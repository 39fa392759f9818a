"""Archives of requests (HAR) of browsers and proxies: their calls of models as conversations.

Headers, cookies and addresses are not read into the run: they hold keys.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.integrations.formats.exchanges import object_of
from ramify.integrations.formats.protocols import protocol_of, read_wire, streamed
from ramify.integrations.formats.spans import CallTrees, task_name
from ramify.integrations.formats.spoken import parsed
from ramify.trace.aliases import KNOWN, NOTHING, message_of
from ramify.trace.chats import provenance_of
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.lines import MAX_LINE, read_within

_OPENS = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"log"\s*:\s*\{')


def read_har(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from an archive, entry by entry. Returns how many entries were read.

    Calls of chat completions, of the Responses interface and of Anthropic's messages, whole or streamed, are joined to
    conversations (:mod:`ramify.integrations.formats.spans`); other entries are counted. A call whose answer the archive does not
    hold (browsers leave out streams) is counted too: the next call repeats it. Raises UserError naming file and entry, and where
    no entry is the call of a model. Nothing is left in ``folder`` then."""
    left_out: Counter[str] = Counter()
    trees: list[CallTrees] = []

    def add(run: Run, record: dict[str, Any], place: str, number: int) -> None:
        if not trees:
            trees.append(CallTrees(run, count()))
        why = _add(run, record, place, trees[0])
        if why:
            left_out[why] += 1

    def end(run: Run) -> None:
        if not trees or not trees[0].leaves:
            why = ", ".join(f"{number} x {what}" for what, number in left_out.items())
            raise UserError(f"{path}: none of its entries is the call of a model ({why or 'no entry could be read'})")
        for what, number in left_out.items():
            run.log("ignored", what, {"count": number, "what": "entries"})

    return import_records(path, folder, "har", add, read_within(path, ("log", "entries")), end=end)


def _add(run: Run, entry: Mapping[str, Any], place: str, trees: CallTrees) -> str:
    """Hang the call of an entry; why it is none, or is left out, else "" """
    request = object_of(entry.get("request"), f"{place}: 'request'")
    response = object_of(entry.get("response"), f"{place}: 'response'")
    url = request.get("url")
    if request.get("method") != "POST" or not isinstance(url, str):
        return "a request that is not a POST"
    body = parsed(_text(request.get("postData"), f"{place}: 'postData'"))
    protocol = protocol_of(url, body)
    if protocol is None:
        return "a request that is not the call of a model"
    status = response.get("status")
    failed = type(status) is not int or not 200 <= status < 300
    text = _text(response.get("content"), f"{place}: 'content'")
    answer = parsed(text)
    if not isinstance(answer, Mapping):
        answer = streamed(protocol, text, place) if "data:" in text else {}
    if not answer and not failed:
        return "a call whose answer is not in the archive"
    error = answer.get("error") or None
    call = read_wire(protocol, body, {} if failed else answer, place, run.put_blob)
    judged = NOTHING
    if failed or (error is not None and not call.replies):
        said = message_of(error) or " ".join(text.split())[:200]
        what = f"HTTP {status}" if status else "the request was broken off"
        judged = KNOWN.judged({"error": {"type": what, "message": said} if said else what}, place)
    name, asked = task_name(call.given)
    about = {**call.rest, **({} if judged is NOTHING else {"error": judged.failure or error or what})}
    if isinstance(started := entry.get("startedDateTime"), str):
        about["at"] = started
    trees.hang(
        name,
        {"id": name, "asked": asked[:200]},
        call.given,
        [] if failed else call.replies,
        provenance_of(body, answer),
        about,
        judged,
    )
    return ""


def _text(value: Any, spot: str) -> str:
    """The text of a body; base64 is decoded. "" where there is none."""
    if not isinstance(value, Mapping) or not isinstance(text := value.get("text"), str):
        return ""
    if value.get("encoding") != "base64":
        return text
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        raise UserError(f"{spot} is not a base64") from None


def _matches(path: Path, first: Mapping[str, Any] | None) -> bool:
    if first is not None:
        log = first.get("log")
        return isinstance(log, Mapping) and isinstance(log.get("entries"), list)
    try:  # an archive that is too large to be read at once
        if not path.is_file() or path.stat().st_size <= MAX_LINE:
            return False
        with path.open("rb") as file:
            return _OPENS.match(file.read(1 << 12)) is not None
    except OSError:
        return False


def _example() -> Iterator[dict[str, Any]]:
    """The two calls of an agent with a tool between them."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    asked = {"role": "user", "content": "Is it warm in Oslo?"}
    looked = {"role": "assistant", "content": None, "tool_calls": [call]}
    told = {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees"}
    said = {"role": "assistant", "content": "No: 4 degrees."}
    for given, reply in (([asked], looked), ([asked, looked, told], said)):
        body = {"model": "some-model", "messages": given}
        yield {
            "startedDateTime": "2026-01-01T10:00:00.000Z",
            "request": {
                "method": "POST",
                "url": "https://api.example.org/v1/chat/completions",
                "headers": [{"name": "Authorization", "value": "Bearer not-kept"}],
                "postData": {"mimeType": "application/json", "text": json.dumps(body)},
            },
            "response": {
                "status": 200,
                "content": {"mimeType": "application/json", "text": json.dumps({"choices": [{"message": reply}]})},
            },
        }


register("reader", "har")(
    Reader(
        "har",
        "Archives of requests (HAR): calls of chat completions, Responses and Anthropic's messages; no header is kept.",
        _matches,
        read_har,
        (),
        json.dumps({"log": {"version": "1.2", "creator": {"name": "some proxy", "version": "1"}, "entries": list(_example())}}),
    )
)
