"""A drafter of ramify inside ``model.generate`` of transformers: its own assisted generation verifies what the drafter proposes.

::

    drafter = load_drafter("d/", model)
    out = generate(model, drafter, input_ids, max_new_tokens=100, do_sample=True, temperature=0.7)

One sequence at a time, as assisted generation does. The drafter sees the logits processors of the call, so that the distribution
it samples from is the distribution passed to the verification.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ramify.base.errors import NeedsError, UserError
from ramify.engine.batch import UNIT
from ramify.engine.cache import KVCache
from ramify.methods.dspark.drafters import Qwen3Drafter

try:
    from transformers.generation.candidate_generator import CandidateGenerator

    READY = hasattr(CandidateGenerator, "requires_model_outputs")
except ImportError as error:
    raise NeedsError(f"a drafter inside transformers needs transformers: {error}") from error

FIRST = 0
"""The drafter's layers are the only ones of its cache: the target's keys and values are in transformers' own cache."""


def generate(model: nn.Module, drafter: Qwen3Drafter, input_ids: Tensor, threshold: float | None = None, **options: Any) -> Any:
    """``model.generate(input_ids, **options)`` with drafts of ``drafter``, which must be attached to ``model``.

    ``threshold``: drafts from the first on whose confidence lies below it are not verified. Raises UserError on more than one
    sequence, NeedsError on a model whose cache cannot be rolled back, or where transformers is too old.
    """
    if not READY:
        raise NeedsError(
            "a drafter inside transformers needs a version whose candidate generators are given the model's outputs (5.23)"
        )
    if input_ids.dim() != 2 or len(input_ids) != 1:
        raise UserError(f"input_ids are {tuple(input_ids.shape)}; assisted generation takes one sequence, (1, tokens)")
    if options.get("past_key_values") is not None:
        raise NeedsError("a drafter inside transformers starts from the prompt: it takes no cache from before the call")
    if getattr(model, "_is_stateful", False):
        raise NeedsError(
            f"{type(model).__name__} keeps a recurrent state, which cannot be rolled back to before a rejected draft"
        )

    def decode(module: Any, input_ids: Tensor, **given: Any) -> Any:
        def candidates(**known: Any) -> DrafterCandidates:
            return DrafterCandidates(drafter, known["generation_config"], known["logits_processor"], threshold)

        module._get_candidate_generator = candidates  # an attribute of the object covers the method of the class
        try:
            return module._assisted_decoding(input_ids, inputs_tensor=input_ids, **given)
        finally:
            del module._get_candidate_generator

    return model.generate(input_ids, custom_generate=decode, **options)  # type: ignore[operator]


class DrafterCandidates(CandidateGenerator):  # type: ignore[misc]
    """Candidates of one call of ``generate``. Keeps the drafter's keys and values; what was rejected is simply written over."""

    requires_model_outputs = True

    def __init__(self, drafter: Qwen3Drafter, settings: Any, processors: Any, threshold: float | None = None) -> None:
        self.drafter, self.processors, self.threshold = drafter, processors, threshold
        self.longest, self.sample = int(settings.max_length), bool(settings.do_sample)
        self.layers = [layer + 1 for layer in drafter.config.target_layers]
        self.model_kwargs_overrides = {"output_hidden_states": self.layers}
        self.known = 0
        """Positions taken in."""
        self.cache = KVCache(drafter.layers, drafter.config.kv_size, drafter.head.device)

    def get_candidates(
        self,
        input_ids: Tensor,
        model_kwargs: dict[str, Any],
        model_outputs: Any,
        is_first_iteration: bool,
        n_last_matches: int,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """``input_ids`` [1, T] with drafts appended, and the logits [1, l, V] they were sampled from; None where there are none.

        Raises NeedsError on a padded prompt.
        """
        if is_first_iteration:  # the prompt runs first: nothing is known of it yet
            mask = model_kwargs.get("attention_mask")
            if mask is not None and not mask.all():
                raise NeedsError("a drafter inside transformers takes no padded prompt")
            return input_ids, None
        anchor = input_ids.shape[1] - 1
        self._absorb(input_ids, model_outputs.hidden_states, int(n_last_matches) + 1 if self.known else anchor)
        depth = min(self.drafter.config.block, self.longest - anchor - 2)
        if depth < 1:
            return input_ids, None
        ids, distributions = input_ids, []

        def pick(k: int, logits: Tensor) -> Tensor:
            nonlocal ids
            distribution = self.processors(ids, logits.float().clone())
            distributions.append(distribution)
            token = torch.multinomial(distribution.softmax(-1), 1) if self.sample else distribution.argmax(-1, keepdim=True)
            ids = torch.cat((ids, token), 1)
            return token[:, 0]

        where = torch.tensor([anchor], device=input_ids.device)
        drafts = self.drafter.draft(self.cache, FIRST, torch.zeros_like(where), input_ids[:, -1], where, pick, depth)
        kept = depth
        if self.threshold is not None:
            low = (drafts.confidence[0] < self.threshold).nonzero()
            kept = int(low[0]) if len(low) else depth
        if kept == 0:  # with no candidate there must be no logits either: a slice of the last 0 of them is all of them
            return input_ids, None
        return ids[:, : anchor + 1 + kept].clone(), torch.stack(distributions[:kept], 1).clone()

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        """Nothing to adapt."""

    def _absorb(self, input_ids: Tensor, states: Any, count: int) -> None:
        """Take in the features of the next ``count`` positions, the first that the last outputs hold."""
        features = torch.cat([states[layer][0, :count] for layer in self.layers], -1).to(self.drafter.head.dtype)
        positions = torch.arange(self.known, self.known + count, device=input_ids.device)
        self.cache.reserve(UNIT, input_ids.shape[1] + self.drafter.config.block + UNIT)
        self.drafter.absorb(self.cache, FIRST, torch.zeros_like(positions), positions, features, input_ids[0, positions + 1])
        self.known += count


def transformers_dflash(drafter: Qwen3Drafter) -> Any:
    """A drafter of kind dflash as the model class behind transformers' ``speculation_type="dflash"``, same weights.

    transformers drafts with the slots after the anchor's; here the anchor's slot drafts the first token. So the model gets a
    block one longer, runs without the last mask, and its hidden states get one in front that nobody reads.
    """
    try:
        from transformers.models.muse_glimmer_assistant import modeling_muse_glimmer_assistant as theirs
    except ImportError as error:
        raise NeedsError("this transformers has no DFlash drafter class; 5.23 has") from error
    c = drafter.config
    if c.kind != "dflash":
        raise UserError(f"hf_dflash needs a drafter of kind dflash, not {c.kind}")
    config = theirs.MuseGlimmerAssistantConfig(
        hidden_size=c.width,
        intermediate_size=c.ffn,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_size,
        rms_norm_eps=c.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        max_position_embeddings=c.context,
        layer_types=["full_attention"] * c.layers,
        block_size=c.block,
        mask_token_id=c.mask_token,
        target_layer_ids=list(c.target_layers),
        eos_token_id=None,
    )

    class Shifted(theirs.MuseGlimmerAssistantModel):  # type: ignore[misc]
        def forward(self, noise_embeds: Tensor, **rest: Any) -> Any:
            out = super().forward(noise_embeds, **rest)
            hidden = out.last_hidden_state
            out.last_hidden_state = torch.cat((torch.zeros_like(hidden[:, :1]), hidden), 1)
            return out

    model: nn.Module = Shifted(config).eval()
    names = {"fc": "encoder.fc", "hidden_norm": "encoder.output_norm_enc"}
    weights = {}
    for name, value in drafter.state_dict().items():
        head, _, rest = name.partition(".")
        weights[f"{names.get(head, head)}.{rest}".replace("blocks.", "layers.")] = value
    model.load_state_dict(weights)
    return model
