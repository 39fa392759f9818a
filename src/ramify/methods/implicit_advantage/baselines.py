"""Scorers that read an attempt's text: a model as judge, a generative process reward model, a reward model with a scoring head."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from ramify.base.errors import UserError
from ramify.engine.named import find_model
from ramify.engine.pairs import pair_template
from ramify.methods.implicit_advantage.run import decisions
from ramify.score.judge import Style, ask
from ramify.score.trajectories import chat_layout, load_trajectories


def judged(
    trajectories: Path, model: str, tokenizer: str, style: Style, wanted: Mapping[str, str], scorer: str | None = None
) -> tuple[dict[str, float], list[str]]:
    """Scores of the ``wanted`` attempts by id, and a sentence for each without one. ``wanted``: id -> its record's ``decisions``, or "".

    ``model`` is ``head:PATH`` for a reward model, else any model by name, asked in ``style``; ``tokenizer`` names the model whose ids the
    attempts hold; ``scorer`` is the one the records were made with. Raises UserError where the tokenizer or an attempt is missing, or an attempt is another than the one that was graded.
    """
    template = pair_template(tokenizer)
    if template is None:
        raise UserError(f"'{tokenizer}' has no chat template, so the attempts cannot be read as text")
    attempts, _ = load_trajectories(trajectories, chat_layout(template), scorer)
    texts = [(a.id, template.tokenizer.decode(a.tokens.tolist()), a.n) for a in attempts if a.id in wanted]
    if missing := set(wanted) - {name for name, _, _ in texts}:
        raise UserError(f"{trajectories} has no attempt '{min(missing)}', of which there is a score record")
    for a in attempts:
        if wanted.get(a.id) not in (None, "", decisions(a)):
            raise UserError(f"{trajectories}: '{a.id}' is another attempt than the one that was graded: its actions differ")
    kind, _, path = model.partition(":")
    if kind == "head":
        from ramify.methods.implicit_advantage.reward_head import head_scores

        values = head_scores(Path(path).expanduser(), [text for _, text, _ in texts])
        return {name: value for (name, _, _), value in zip(texts, values, strict=True)}, []
    return asyncio.run(ask(*find_model(model), texts, style))
