"""Runs real evaluations with inspect's mock model into the folder given:
eval/, json/ (the same task twice) and failed/, some/ (one of three samples errors)."""

from __future__ import annotations

import sys
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, ContentImage, ContentText, GenerateConfig, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, includes, mean, scorer
from inspect_ai.solver import generate, solver, system_message, use_tools
from inspect_ai.tool import tool

EVIL = "</script><script>alert(1)</script>\x1b]0;title\x07"


@tool
def add() -> Any:
    async def execute(x: int, y: int) -> str:
        """Add two numbers.

        Args:
            x: One.
            y: The other.
        """
        return str(x + y)

    return execute


@scorer(metrics=[mean()])
def broken() -> Any:
    async def score(state: Any, target: Any) -> Score:
        return Score(value=float("nan"), explanation=EVIL)

    return score


@scorer(metrics={"a": [mean()], "b": [mean()]})
def pair() -> Any:
    async def score(state: Any, target: Any) -> Score:
        return Score(value={"a": 1, "b": 0.5}, metadata={"why": ["x"]})

    return score


def reply(input: list, tools: list, tool_choice: Any, config: Any) -> ModelOutput:
    if input[-1].role == "tool":
        output = ModelOutput.from_content("mockllm/model", f"The sum is {input[-1].text}")
    else:
        output = ModelOutput.for_tool_call("mockllm/model", "add", {"x": 1, "y": 2})
    output.usage = ModelUsage(input_tokens=3, output_tokens=2, total_tokens=5)
    return output


def fail(input: list, tools: list, tool_choice: Any, config: Any) -> ModelOutput:
    raise RuntimeError("the endpoint went away")


@solver
def breaks(which: int) -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        if state.sample_id == which:
            raise RuntimeError("the tool server is gone")
        return await generate(state)

    return solve


def answer(input: list, tools: list, tool_choice: Any, config: Any) -> ModelOutput:
    output = ModelOutput.from_content("mockllm/model", "The sum is 3")
    output.usage = ModelUsage(input_tokens=3, output_tokens=2, total_tokens=5)
    return output


def main(folder: str) -> None:
    image = ContentImage(image="data:image/png;base64," + "iVBORw0KGgo" * 60)
    task = Task(
        dataset=[
            Sample(id="a", input="1+2?", target="3"),
            Sample(id=7, input=[ChatMessageUser(content=[ContentText(text="hi"), image])], target=["4"], metadata={"k": 1}),
        ],
        solver=[system_message("Be brief"), use_tools(add()), generate()],
        scorer=[includes(), broken(), pair()],
        epochs=2,
        config=GenerateConfig(temperature=0.5, seed=11),
    )
    model = get_model("mockllm/model", custom_outputs=reply)
    eval(task, model=model, log_dir=f"{folder}/eval", log_format="eval", display="none")
    eval(task, model=model, log_dir=f"{folder}/json", log_format="json", display="none")
    eval(
        task, model=get_model("mockllm/model", custom_outputs=fail), log_dir=f"{folder}/failed", log_format="eval", display="none"
    )
    sums = [Sample(id=i, input=f"{i}+2?", target=str(i + 2), metadata={"hard": i > 2}) for i in (1, 2, 3)]
    eval(
        Task(dataset=sums, solver=[breaks(2)], scorer=includes(), config=GenerateConfig(temperature=0.5, max_tokens=40)),
        model=get_model("mockllm/model", custom_outputs=answer),
        log_dir=f"{folder}/some", log_format="eval", display="none", fail_on_error=False,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
