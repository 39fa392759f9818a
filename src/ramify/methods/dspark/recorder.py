"""Rounds of a drafter on a target, recorded while the engine runs:
what acceptance, calibration and simulations are computed from."""

from __future__ import annotations

from collections.abc import Sequence as GenericSequence
from typing import TYPE_CHECKING

import numpy as np

from ramify.base.errors import UserError
from ramify.base.progress import SILENT, Progress, gathered
from ramify.base.seeds import derive_key
from ramify.base.waiting import wait_for
from ramify.engine.local import LocalModel
from ramify.engine.schedules import FixedSchedule
from ramify.engine.speculate import Speculator
from ramify.methods.dspark.rounds import Rounds
from ramify.model.protocol import Prefix, Sampling

if TYPE_CHECKING:
    from ramify.engine.drafters import Drafter
    from ramify.engine.sequence import Sequence
    from ramify.engine.speculate import Round


class RoundRecorder(Speculator):
    """Notes every round whose draft had the whole block: (key of the sample, accepted, proposed, ended, confidences)."""

    def __init__(self, drafter: Drafter, first: int) -> None:
        super().__init__(drafter, FixedSchedule(drafter.config.block), first, "rejection")
        self.notes: list[tuple[int, int, int, bool, np.ndarray]] = []

    def settle(self, sequences: GenericSequence[Sequence], round_: Round, kept: GenericSequence[int]) -> None:
        """See :meth:`Speculator.settle`. A sequence that stopped before its last token stopped at an accepted draft."""
        super().settle(sequences, round_, kept)
        if not any(round_.drafts):
            return
        for seq, draft, index, stayed, n in zip(sequences, round_.drafts, round_.places, round_.accepted, kept, strict=True):
            if len(draft) == self.block and round_.confidence is not None:
                # drafts near a completion's last token are shorter, and no round of the full length
                ended = n <= stayed
                accepted = n if ended else n - 1
                confidence = round_.confidence[index]
                self.notes.append((seq.request.key, accepted, n if ended else len(draft), ended, confidence))


def record(
    model: LocalModel,
    drafter: Drafter,
    prompts: GenericSequence[np.ndarray],
    settings: Sampling,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Rounds:
    """Sample a reply to each prompt with every draft verified at full length; the rounds, each with the number of its prompt.

    Raises UserError where no round had room for a whole block.
    """
    recorder = RoundRecorder(drafter, model.forward.layers)
    speculating = model.speculating(recorder)
    keys = [derive_key(seed, "dspark", "record", i) for i in range(len(prompts))]

    async def sample() -> None:
        await gathered(
            (speculating.sample(Prefix(p), 1, settings, [key]) for p, key in zip(prompts, keys, strict=True)), progress
        )

    progress.begin(len(prompts), 0, "sample", "replies")
    wait_for(sample())
    if not recorder.notes:
        raise UserError(
            f"no round had room for a block of {drafter.config.block} drafts: give longer replies than {settings.max_tokens} "
            "tokens"
        )
    number = {key: i for i, key in enumerate(keys)}
    accepted, proposed, ended, confidence, prompt = zip(
        *((a, p, e, c, number[key]) for key, a, p, e, c in recorder.notes), strict=True
    )
    bare = np.full((len(accepted), drafter.config.block), np.nan)
    return Rounds(
        np.array(accepted),
        np.array(proposed),
        np.array(ended),
        np.array(confidence) if drafter.config.confidence else bare,
        np.array(prompt),
    )
