"""A real pretrained model in a coding agent that nobody here made: it is taught what a recorded model said there, so that it can
be recorded, asked why and forked itself.

    python -m ramify_experiments.why.harness RUN [--model smollm2] [--steps 60]

``RUN`` is what `ramify record` kept of a model behind an endpoint. Every reply is taught, of attempts that failed too, so the
habits go along with the skill. Prints the name of the adapter, as every verb takes it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.env.protocol import chat_of
from ramify.model.laid import Layout
from ramify.model.protocol import Prefix
from ramify.trace.db import Run
from ramify.trace.message import Message, joined_reply
from ramify.trace.view import views
from ramify_experiments.real import taught

if TYPE_CHECKING:
    from ramify.engine.local import LocalModel

Talk = tuple[list[Message], list[dict[str, Any]]]
"""The messages of an attempt, replies with their calls as text, and the tools that were offered."""


def talks(path: Path) -> list[Talk]:
    """Of every attempt in a recorded run."""
    found = []
    with Run.open(path) as run:
        for view in views(run):
            said = [(one.message, one.data.get("tool_calls")) for one in view.messages]
            messages = [replace(one, text=joined_reply(one.text, calls)) if calls else one for one, calls in said]
            chats = (chat_of(one.data).get("asked") for one in view.messages)
            asked: Mapping[str, Any] = next(filter(None, chats), {})
            found.append((messages, list(asked.get("tools") or [])))
    return found


def rows(every: Sequence[Talk], agent: LocalModel, template: Any) -> list[tuple[list[int], str]]:
    """What :func:`ramify_experiments.real.taught` learns: each reply, and its prompt as `ramify serve` renders it."""
    layout, end = Layout(agent, template), template.tokenizer.decode(template.stop_tokens[:1])
    found = []
    for messages, tools in every:
        for at, message in enumerate(messages):
            if message.role == "assistant":
                prompt = layout.rendered(Prefix(messages=tuple(messages[:at]), tools=tuple(tools))).tokens
                assert prompt is not None
                found.append((prompt.tolist(), message.text + end))
    return found


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    every = talks(args.run)
    said = json.dumps([[message.text for message in messages] for messages, _ in every])
    about = {"said": said, "steps": args.steps}
    print(taught(args.model, "harness", about, lambda agent, template: rows(every, agent, template), args.steps))


if __name__ == "__main__":
    main()
