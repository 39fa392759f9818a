"""A reward model with a scoring head on a transformers decoder: a number for a row of text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ramify.base.errors import NeedsError, UserError
from ramify.model.tokenizer import HfTokenizer


def head_scores(folder: Path, texts: Sequence[str], max_length: int = 16_384) -> list[float]:
    """Score of each text under a sequence-classification checkpoint; long ones are cut from the left, to ``max_length`` tokens.

    One output is the score itself. Several are ordered classes, worst first (ordinal reward models): the score is the expected
    class. Raises UserError where there is no checkpoint, NeedsError where it has no scoring head.
    """
    from transformers import AutoModelForSequenceClassification

    if not (folder / "config.json").is_file():
        raise UserError(f"there is no model in {folder}")
    tokenizer = HfTokenizer.load(folder)
    try:
        module, report = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=False, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise NeedsError(f"transformers cannot open {folder} as a reward model: {str(error).splitlines()[0]}") from error
    if missing := sorted(report["missing_keys"]):
        raise NeedsError(f"{folder} is not a reward model: it has no weight '{missing[0]}', which would be sampled at random")
    module.eval()
    scores = []
    for text in texts:
        ids = tokenizer.encode(text)[-max_length:]
        if not ids:
            raise UserError("a text to score is empty")
        with torch.inference_mode():
            logits = module(input_ids=torch.tensor([ids])).logits[0].double()
        classes = torch.arange(len(logits), dtype=torch.float64)
        scores.append(float(logits[0] if len(logits) == 1 else (logits.softmax(-1) * classes).sum()))
    return scores
