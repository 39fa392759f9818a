"""Any transformers decoder that uses the library's attention interface, run on the engine's own cache.

The module sees a batch as one row of M tokens with given positions; its attention calls land here, store keys and values in the
cache and attend as every other model of the engine does. Outside a batch (training, scoring) the module behaves as with ``sdpa``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ramify.base.errors import NeedsError, UserError
from ramify.engine.batch import UNIT, ForwardBatch, padded
from ramify.engine.cache import KVCache
from ramify.engine.forward import numbers_of
from ramify.engine.products import Int8, in_int8
from ramify.engine.sharing import shared_rows
from ramify.engine.tiny import Tap

_NAME = "ramify"
_batch: ContextVar[ForwardBatch | None] = ContextVar("ramify_forward_batch", default=None)


def _attention(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> tuple[Tensor, None]:
    """The attention function transformers calls: q [B, H, T, E], k and v [B, G, T, E]; returns [B, T, H, E]."""
    batch = _batch.get()
    if batch is None and (rows := shared_rows.get()) is not None:
        return rows.attend(q, k, v, options.get("scaling")).transpose(1, 2), None
    if batch is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        mixed: tuple[Tensor, None] = sdpa_attention_forward(module, q, k, v, mask, **options)
        return mixed
    for extra in ("softcap", "s_aux", "position_bias"):  # a sliding window bounds the context, within which it changes nothing
        if options.get(extra) is not None:
            raise NeedsError(f"the engine cannot run {type(module).__name__}: its attention uses {extra}")
    if k.shape != v.shape:
        raise NeedsError(f"the engine cannot run {type(module).__name__}: keys and values differ in shape")
    kv = torch.cat((k[0].transpose(0, 1), v[0].transpose(0, 1)), dim=1).flatten(1)
    scale = options.get("scaling")
    layer: Any = module.layer_idx
    mixed_rows = batch.attend(layer, q[0].transpose(0, 1), kv, q.shape[-1] ** -0.5 if scale is None else scale)
    if batch.used < batch.size:
        mixed_rows = torch.cat((mixed_rows, mixed_rows.new_zeros((batch.size - batch.used, mixed_rows.shape[1]))))
    return mixed_rows.view(1, q.shape[2], q.shape[1], q.shape[3]), None


def _mask(*args: Any, **options: Any) -> Any:
    """The mask function: none inside a batch or for shared rows, that of ``sdpa`` elsewhere."""
    if _batch.get() is not None or shared_rows.get() is not None:
        return None
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(*args, **options)


def load_transformers(folder: Path, weights: bool = True) -> nn.Module:
    """Open a causal language model as float32, from the folder alone and without running code from it; without ``weights`` as
    its config.json describes it, on torch's device meta.

    Raises NeedsError where transformers does not know the model or cannot open it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with quiet():
            if not weights:
                config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
                with torch.device("meta"):
                    outline: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
                return outline.eval()
            module, loading = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                trust_remote_code=False,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise NeedsError(f"transformers cannot open {folder} as a causal language model: {str(error).splitlines()[0]}") from error
    if missing := sorted(loading["missing_keys"]):  # transformers would sample them at random
        raise UserError(f"{folder}: weight '{missing[0]}' is missing")
    model: nn.Module = module.eval()
    return model


def to_int8(module: nn.Module) -> None:
    """Round the matrices of all linear layers to int8, for good. Raises NeedsError where the model has none."""
    layers = linear_layers(module)
    if not layers:
        raise NeedsError(f"{type(module).__name__} has no linear layers that could be int8")
    for weight, layer, turned in layers:
        owner, _, last = weight.removesuffix(".weight").rpartition(".")
        setattr(module.get_submodule(owner), last, Int8(layer.weight.t() if turned else layer.weight, layer.bias))


def linear_layers(module: nn.Module) -> list[tuple[str, Any, bool]]:
    """Name of the weight, layer, and whether its matrix is turned [in, out], as GPT-2 keeps it."""
    kinds = ((name, layer, type(layer).__name__) for name, layer in module.named_modules())
    return [(f"{name}.weight", layer, kind == "Conv1D") for name, layer, kind in kinds if kind in ("Linear", "Conv1D")]


def save_transformers(module: nn.Module, folder: Path) -> None:
    """Write config.json and the weights as safetensors, tied ones once; no generation_config.json."""
    from transformers import GenerationConfig

    kept, module.generation_config = getattr(module, "generation_config", None), GenerationConfig()
    try:
        with quiet():
            module.save_pretrained(folder)  # type: ignore[operator]
    finally:
        module.generation_config = kept  # type: ignore[assignment]
    (folder / "generation_config.json").unlink(missing_ok=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's own progress bars and warnings, which would be written over ramify's."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def eos_tokens(module: nn.Module) -> tuple[int, ...]:
    """End-of-turn tokens of a transformers model: those of its generation config, else of its config."""
    for config in (getattr(module, "generation_config", None), module.config):
        eos = getattr(config, "eos_token_id", None)
        if eos is not None:
            return (eos,) if isinstance(eos, int) else tuple(eos)
    return ()


class HfForward:
    """A transformers causal language model as :class:`ramify.engine.forward.Forward`."""

    def __init__(self, module: nn.Module) -> None:
        from transformers import AttentionInterface, AttentionMaskInterface

        config: Any = module.config.get_text_config()  # type: ignore[operator, union-attr]
        kind = config.model_type
        windows = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention", "sliding_attention"}
        if getattr(module, "_is_stateful", False) or windows:
            raise NeedsError(
                f"the engine cannot run '{kind}': a {', '.join(sorted(windows)) or 'recurrent'} cache cannot be forked"
            )
        if not type(module)._can_set_attn_implementation():  # type: ignore[attr-defined]
            raise NeedsError(f"the engine cannot run '{kind}': it does not use the attention interface of transformers")
        AttentionInterface.register(_NAME, _attention)
        AttentionMaskInterface.register(_NAME, _mask)
        module.set_attn_implementation(_NAME)  # type: ignore[operator]
        self.module = module.eval()
        self.layers = int(config.num_hidden_layers)
        heads = int(config.num_attention_heads)
        self.kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        self.width = int(config.hidden_size)
        head_size = int(getattr(config, "head_dim", None) or self.width // heads)
        self.kv_size = 2 * self.kv_heads * head_size
        self.vocab = int(config.vocab_size)
        self.context, self.bound = _context_of(config)
        self.shape = str(config.to_json_string()) + "int8" * in_int8(module)
        self.weights = numbers_of(module)
        self.unit = 1 if in_int8(module) else UNIT
        first = next(module.parameters())
        self.device, self.dtype = first.device, first.dtype
        self._tap: Tap | None = None
        self._hook()
        if self.device.type != "meta":  # without weights nothing can be tried
            self._check(kind)

    def refresh(self) -> None:
        """Nothing is copied from the module, so nothing to do."""
        return

    def shallow(self) -> HfForward:
        """See :class:`ramify.engine.forward.Forward`."""
        return self

    def hidden(self, batch: ForwardBatch, tap: Tap | None = None) -> Tensor:
        """See :class:`ramify.engine.forward.Forward`."""
        token = _batch.set(batch)
        try:
            return self._run(batch.tokens[None], batch.positions[None], tap)[0]
        finally:
            _batch.reset(token)

    def full(self, tokens: Tensor, tap: Tap | None = None) -> Tensor:
        """See :class:`ramify.engine.forward.Forward`."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        return self._run(tokens, positions, tap)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] to [..., V]."""
        head: nn.Module = self.module.get_output_embeddings()  # type: ignore[operator]
        logits: Tensor = head(hidden)
        return logits

    def _run(self, tokens: Tensor, positions: Tensor, tap: Tap | None) -> Tensor:
        self._tap = tap
        try:
            body: nn.Module = self.module.base_model  # type: ignore[assignment]
            last: Tensor = body(input_ids=tokens, position_ids=positions, use_cache=False).last_hidden_state
            return last
        finally:
            self._tap = None

    def _hook(self) -> None:
        """Let taps see the embedding (as it enters the first block) and every block's output."""
        blocks = blocks_of(self.module, self.layers)

        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            if self._tap is None:
                return args, kwargs
            if args:
                return (self._see(0, args[0]), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": self._see(0, kwargs["hidden_states"])}

        blocks[0].register_forward_pre_hook(enter, with_kwargs=True)
        for layer, block in enumerate(blocks, 1):

            def leave(_: nn.Module, __: Any, output: Any, layer: int = layer) -> Any:
                if isinstance(output, tuple):
                    return (self._see(layer, output[0]), *output[1:])
                return self._see(layer, output)

            block.register_forward_hook(leave)

    def _see(self, layer: int, hidden: Tensor) -> Tensor:
        if self._tap is None:
            return hidden
        if _batch.get() is None:
            return self._tap(layer, hidden)
        return self._tap(layer, hidden[0])[None]

    def _check(self, kind: str) -> None:
        """Compare a batch with the module's own forward pass:
        a model that the cache does not reproduce is refused, not approximated."""
        ids = [i % self.vocab for i in range(min(12, self.context))]
        tokens = torch.tensor(ids, device=self.device)
        cache = KVCache(self.layers, self.kv_size, self.device, dtype=self.dtype)
        cache.reserve(1, padded(len(ids)))
        near = 1e-3 if self.dtype == torch.float32 else 5e-2
        with torch.inference_mode(), quiet():
            try:
                cached = self.logits(self.hidden(ForwardBatch(cache, self.kv_heads, ids, range(len(ids)), 0)))[: len(ids)]
            except (RuntimeError, TypeError, AttributeError, IndexError) as error:
                raise NeedsError(f"the engine cannot run '{kind}': {str(error).splitlines()[0]}") from error
            reference = self.module(input_ids=tokens[None], use_cache=False).logits[0]
        if not torch.allclose(cached, reference, rtol=near, atol=near * float(reference.abs().max())):
            raise NeedsError(f"the engine cannot run '{kind}': its attention does more than the engine's cache reproduces")


def attends_here(module: nn.Module) -> bool:
    """Whether a transformers model's attention calls land here, as :class:`HfForward` sets it."""
    text_config = getattr(getattr(module, "config", None), "get_text_config", None)
    return text_config is not None and getattr(text_config(), "_attn_implementation", None) == _NAME


def _context_of(config: Any) -> tuple[int, str]:
    """Longest row that the engine's cache reproduces, and what bounds it where that is not the model's own context."""
    context, why = int(getattr(config, "max_position_embeddings", None) or 1 << 20), ""
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True) and window < context:
        context, why = int(window), "the sliding window of its attention, beyond which the local engine is not exact"
    rope = getattr(config, "rope_parameters", None) or {}
    for record in [rope, *(part for part in rope.values() if isinstance(part, dict))]:
        first = record.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
        if record.get("rope_type") in ("longrope", "dynamic") and first and first < context:
            # what a short row's positions mean would depend on the longest row alongside it
            context, why = (
                int(first),
                "the context before its rotary positions are stretched, beyond which the local engine is not exact",
            )
    return context, why


def blocks_of(module: nn.Module, layers: int) -> nn.ModuleList:
    """The list of ``layers`` blocks of a transformers model. Raises NeedsError where it has none."""
    for child in module.modules():
        if isinstance(child, nn.ModuleList) and len(child) == layers:
            return child
    raise NeedsError(f"the engine finds no list of {layers} blocks in {type(module).__name__}")
