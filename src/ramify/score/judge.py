"""A model as the judge of an attempt's text: one grade, or a verdict on each step in the form process reward models write.

What an attempt says reaches the judge as quoted text, so it can try to talk the judge round: a judge's score is evidence, no permission.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from ramify.base.errors import BoundaryError
from ramify.base.seeds import place_key
from ramify.model.chat import ChatTemplate
from ramify.model.protocol import Message, Model, Prefix, Sampling
from ramify.model.rendered import laid_out

Style = Literal["grade", "steps"]
_ASK: dict[Style, str] = {
    "grade": (
        "Below is the record of an agent's attempt at a task. Judge how likely it is that the attempt succeeded. Think briefly, then end "
        "with one line 'Score: N', N from 0 (certainly failed) to 10 (certainly succeeded).\n\n<attempt>\n{text}\n</attempt>"
    ),
    "steps": (
        "Below is the record of an agent's attempt at a task. Go through the agent's steps in order. For each, say in a sentence whether it "
        "helps, and end it with 'The step is \\boxed{{correct}}' or 'The step is \\boxed{{incorrect}}'. Stop after the first incorrect "
        "step.\n\n<attempt>\n{text}\n</attempt>"
    ),
}
_SCORE = re.compile(r"[Ss]core\s*:\s*\**\s*(\d+(?:\.\d+)?)")
_VERDICT = re.compile(r"\\boxed\{\s*(?:\\text\{)?\s*(correct|incorrect)", re.IGNORECASE)


def read_grade(reply: str) -> float | None:
    """The last 'Score: N' of a reply as 0 to 1; None where there is none from 0 to 10."""
    found = _SCORE.findall(reply)
    value = float(found[-1]) / 10 if found else -1.0
    return value if 0 <= value <= 1 else None


def read_steps(reply: str, steps: int) -> float | None:
    """Share of an attempt's steps that a reply calls correct before the first incorrect one; None where it gives no verdict."""
    verdicts = [verdict.lower() == "correct" for verdict in _VERDICT.findall(reply)]
    if not verdicts:
        return None
    right = verdicts.index(False) if False in verdicts else len(verdicts)
    return min(1.0, right / max(steps, len(verdicts)))


async def ask(
    model: Model,
    template: ChatTemplate | None,
    attempts: Sequence[tuple[str, str, int]],
    style: Style = "grade",
    max_tokens: int = 1024,
) -> tuple[dict[str, float], list[str]]:
    """Scores by name of attempts given as (name, text, steps), and one sentence for each that got none.

    Replies are drawn greedily. A judge that fails or says nothing usable leaves the attempt unscored; the others go on.
    """
    scores: dict[str, float] = {}
    failed = []
    for name, text, steps in attempts:
        try:
            reply = await reply_to(model, template, _ASK[style].format(text=text), name, max_tokens)
        except BoundaryError as error:
            failed.append(f"attempt '{name}': {error}")
            continue
        value = read_grade(reply) if style == "grade" else read_steps(reply, steps)
        if value is None:
            failed.append(f"attempt '{name}': the judge's reply holds no {'score' if style == 'grade' else 'verdict'}")
        else:
            scores[name] = value
    return scores, failed


async def reply_to(model: Model, template: ChatTemplate | None, text: str, name: str = "", max_tokens: int = 1024) -> str:
    """What a model says to one user message, drawn greedily. ``name`` keys the draw. Raises BoundaryError where it fails."""
    stops = () if template is None else template.stop_tokens
    settings = Sampling(temperature=0.0, max_tokens=max_tokens, stop_tokens=stops)
    (draw,) = await model.sample(_prefix(template, text), 1, settings, [place_key(0, "judge", name)])
    return draw.text


def _prefix(template: ChatTemplate | None, text: str) -> Prefix:
    if template is None:
        return Prefix(messages=(Message("user", text),))
    return Prefix(tokens=np.array(laid_out(template, [("user", text)]), np.int32))
