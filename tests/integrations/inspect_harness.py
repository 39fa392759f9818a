"""Agents of inspect with compaction, evaluated offline: ``python inspect_harness.py FOLDER`` writes a log for each case into a
folder of its own.

Whatever a message says is counted as a quarter of its characters; a made-up model sends eleven mails, one a call, then submits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.agent import as_solver, as_tool, react
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageUser,
    CompactionNative,
    CompactionSummary,
    CompactionTrim,
    ContentData,
    Model,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    get_model,
    modelapi,
)
from inspect_ai.scorer import model_graded_qa
from inspect_ai.solver import solver
from inspect_ai.tool import tool

from ramify.integrations.inspect.compaction import keep_rules

RULE = "Only send email to recipients at acme.com."


@tool
def send_email() -> Callable[..., Any]:
    async def execute(to: str, body: str = "") -> str:
        """Send an email.

        Args:
            to: the recipient
            body: the text
        """
        return f"sent to {to}"

    return execute


@solver
def stated() -> Any:
    """What a user says after the sample's input, which inspect never compacts."""

    async def solve(state: Any, generate: Any) -> Any:
        state.messages += [ChatMessageAssistant(content="What should I mind?"), ChatMessageUser(content=RULE)]
        return state

    return solve


class Mailer:
    """The made-up model: who it plays is told from what it is shown."""

    def __init__(self, vary: bool, mails: int, overhead: int = 12) -> None:
        self.vary, self.mails, self.overhead, self.calls = vary, mails, overhead, 0

    def __call__(self, input: list[Any], tools: list[Any], choice: Any, config: Any) -> ModelOutput:
        if "summarizing conversations" in input[-1].text:
            text = "<analysis>Mails.</analysis>\n\n<summary>\nMails were sent to people of the list, work continues.\n</summary>"
            output = ModelOutput.from_content("mockllm/model", text)
        elif not tools:
            output = ModelOutput.from_content("mockllm/model", "GRADE: C")
        elif any(one.name == "helper" for one in tools) and not any(m.role == "tool" for m in input):
            output = ModelOutput.for_tool_call("mockllm/model", "helper", {"input": "Look the people up."})
        else:
            self.calls += 1
            to = f"p{self.calls if self.vary else 0}@acme.com"
            last = self.calls % self.mails == 0 or not any(one.name == "send_email" for one in tools)
            call = ("submit", {"answer": "done"}) if last else ("send_email", {"to": to, "body": "Hello there, " * 8})
            output = ModelOutput.for_tool_call("mockllm/model", *call)
        size = sum(len(m.text) // 4 + self.overhead + 40 * bool(getattr(m, "tool_calls", None)) for m in input)
        output.usage = ModelUsage(input_tokens=size, output_tokens=5, total_tokens=size + 5)
        return output


@modelapi("keeper")
def keeper() -> type[ModelAPI]:
    """A provider that compacts for itself, as OpenAI's does: what comes back is one encrypted item."""

    class Keeper(ModelAPI):
        def __init__(self, model_name: str, *args: Any, **options: Any) -> None:
            super().__init__(model_name)
            self.mailer, self.made = Mailer(vary=True, mails=11), 0

        async def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> ModelOutput:
            return self.mailer(input, tools, tool_choice, config)

        async def compact(self, input: Any, tools: Any, config: Any, instructions: Any = None) -> Any:
            self.made += 1
            data = {"type": "openai_compact", "id": f"cmp_{self.made}", "encrypted_content": f"gAAAA{self.made}"}
            return [ChatMessageUser(content=[ContentData(data={"compaction_metadata": data})], source="generate")], None

    return Keeper


def mock(**options: Any) -> Model:
    return get_model("mockllm/model", custom_outputs=Mailer(**options))


def cases() -> dict[str, tuple[Any, Any, Model, Any]]:
    """Name -> compaction, solver before the agent, model, scorer."""
    summary = lambda: CompactionSummary(threshold=520, memory=False)  # noqa: E731
    trim = CompactionTrim(threshold=600, preserve=0.5, memory=False)
    still = CompactionTrim(threshold=2000, preserve=0.99, memory=False)
    return {
        "pinned": (keep_rules(summary(), RULE), stated(), mock(vary=True, mails=11), None),
        "bare": (summary(), stated(), mock(vary=True, mails=11), None),
        "alike": (trim, stated(), mock(vary=False, mails=30), None),
        "still": (still, stated(), mock(vary=True, mails=14, overhead=300), None),
        "native": (CompactionNative(threshold=520), stated(), get_model("keeper/x"), None),
        "graded": (None, stated(), mock(vary=True, mails=3), model_graded_qa()),
    }


def main(folder: Path) -> None:
    async def count(self: Any, text: str) -> int:  # inspect counts with a table that it downloads
        return len(text) // 4

    ModelAPI.count_text_tokens = count  # type: ignore[method-assign]
    for name, (compaction, before, model, scorer) in cases().items():
        helper = react(name="helper", description="Looks people up.", prompt="You are a helper.", tools=[])
        tools = [send_email(), as_tool(helper)] if name == "graded" else [send_email()]
        agent = as_solver(react(tools=tools, compaction=compaction))
        sample = Sample(input="Send the mails of the list.", target="done", id="one")
        task = Task([sample], solver=[before, agent], scorer=scorer)
        (log,) = eval(task, model=model, log_dir=str(folder / name), display="none")
        assert log.status == "success", str(log.error and log.error.message)
        events = [event.event for event in log.samples[0].events]
        print(name, events.count("model"), events.count("compaction"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
