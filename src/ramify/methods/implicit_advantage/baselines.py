"""Judges that read an attempt's text: a model that gives a grade, a generative process reward model,
a reward model with a scoring head."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.base.ledger import Ledger
from ramify.base.waiting import wait_for
from ramify.engine.pairs import pair_template
from ramify.methods.implicit_advantage.run import decisions
from ramify.score.judge import Item, Judge, Judgement, Question, as_asked, find_judge, judged
from ramify.score.trajectories import chat_layout, load_trajectories

Style = Literal["grade", "steps"]
_SCORE = re.compile(r"[Ss]core\s*:\s*\**\s*(\d+(?:\.\d+)?)")
_VERDICT = re.compile(r"\\boxed\{\s*(?:\\text\{)?\s*(correct|incorrect)", re.IGNORECASE)


def read_grade(reply: str, items: Sequence[Item] = ()) -> float:
    """The last 'Score: N' of a reply as 0 to 1. Raises ValueError where there is none from 0 to 10."""
    found = _SCORE.findall(reply)
    value = float(found[-1]) / 10 if found else -1.0
    if not 0 <= value <= 1:
        raise ValueError("the judge's reply holds no score")
    return value


def read_steps(reply: str, items: Sequence[Item]) -> float:
    """Share of an attempt's ``data["steps"]`` that a reply calls correct before the first incorrect one.
    Raises ValueError where it calls none anything."""
    verdicts = [verdict.lower() == "correct" for verdict in _VERDICT.findall(reply)]
    if not verdicts:
        raise ValueError("the judge's reply holds no verdict")
    right = verdicts.index(False) if False in verdicts else len(verdicts)
    return min(1.0, right / max(int(items[0].data["steps"]), len(verdicts)))


STYLES: dict[Style, Question] = {
    "grade": Question(
        "Below is the record of an agent's attempt at a task. Judge how likely it is that the attempt succeeded. Think briefly, "
        "then end "
        "with one line 'Score: N', N from 0 (certainly failed) to 10 (certainly succeeded).\n\n<attempt>\n{text}\n</attempt>",
        read_grade,
    ),
    "steps": Question(
        "Below is the record of an agent's attempt at a task. Go through the agent's steps in order. For each, say in a "
        "sentence whether it "
        "helps, and end it with 'The step is \\boxed{{correct}}' or 'The step is \\boxed{{incorrect}}'. Stop after the first "
        "incorrect "
        "step.\n\n<attempt>\n{text}\n</attempt>",
        read_steps,
    ),
}


class Head:
    """``head:PATH``: a reward model with a scoring head."""

    def __init__(self, path: str) -> None:
        self.name, self.path = f"head:{path}", Path(path).expanduser()

    @property
    def identity(self) -> str:
        """Hash of the checkpoint's files, by name and size."""
        files = sorted((file.name, file.stat().st_size) for file in self.path.iterdir() if file.is_file())
        return stable_hash("judge", "head", 1, *(part for pair in files for part in pair))

    async def judge(self, items: Sequence[Item]) -> list[Judgement]:
        """See :class:`ramify.score.judge.Judge`."""
        from ramify.methods.implicit_advantage.reward_head import head_scores

        return [Judgement(value) for value in head_scores(self.path, [item.text for item in items])]


def find_baseline(model: str, style: Style) -> Judge:
    """The judge that ``head:PATH`` or a model's name stands for, the latter prompted in ``style``; or any other by its spec."""
    return find_judge(as_asked(model, "head"), question=STYLES[style], kinds={"head": Head})


def grades(
    trajectories: Path,
    judge: Judge,
    tokenizer: str,
    wanted: Mapping[str, str],
    scorer: str | None = None,
    ledger: Ledger | None = None,
) -> tuple[dict[str, float], list[str]]:
    """Scores of the ``wanted`` attempts by id, and a sentence for each without one.
    ``wanted``: id -> its record's ``decisions``, or "".

    ``tokenizer`` names the model whose ids the attempts hold; ``scorer`` is the one the records were made with, ``ledger`` has
    what judging cost. Raises UserError where the tokenizer or an attempt is missing,
    or an attempt is another than the one that was graded.
    """
    template = pair_template(tokenizer)
    if template is None:
        raise UserError(f"'{tokenizer}' has no chat template, so the attempts cannot be read as text")
    attempts, _ = load_trajectories(trajectories, chat_layout(template), scorer)
    items = [Item(template.tokenizer.decode(a.tokens.tolist()), a.id, data={"steps": a.n}) for a in attempts if a.id in wanted]
    if missing := set(wanted) - {item.id for item in items}:
        raise UserError(f"{trajectories} has no attempt '{min(missing)}', of which there is a score record")
    for a in attempts:
        if wanted.get(a.id) not in (None, "", decisions(a)):
            raise UserError(f"{trajectories}: '{a.id}' is another attempt than the one that was graded: its actions differ")
    found = list(zip(items, wait_for(judged(judge, items, ledger)), strict=True))
    silent = [f"attempt '{item.id}': {one.failure or 'the judge cannot say'}" for item, one in found if one.value is None]
    return {item.id: float(one.value) for item, one in found if one.value is not None}, silent
