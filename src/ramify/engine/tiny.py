"""A small decoder of the Llama, Qwen2 and Qwen3 shape whose folder is an ordinary Hugging Face checkpoint.

RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied or untied embeddings, optional bias on q/k/v (Qwen2) and optional
RMSNorm on each head's q and k (Qwen3). Parameter names equal those of ``transformers``, which is not imported here.

Axis legend: B batch, T tokens, V vocabulary, D width, H query heads, G key/value heads, E head size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ramify.base.errors import UserError
from ramify.base.files import read_record, write_whole
from ramify.base.ids import canonical_json, hash_of
from ramify.engine.products import LARGE, Int8, by_columns, linear, refuse_int8
from ramify.engine.sharing import SharedRows
from ramify.model.chat import END, SPECIALS, TAG_JINJA
from ramify.model.tokenizer import HfTokenizer

SCRATCH = "ramify_from_scratch"
"""Field of a config.json that says that ramify made the model, from random weights; one without it counts as pretrained."""
#: Called with (layer, hidden state); what it returns continues. Layer 0 is the embedding, layer i the output of block i.
Tap = Callable[[int, Tensor], Tensor]


PART = 4 << 20
"""Bytes of weights that are read together."""


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """Shape of a decoder."""

    vocab: int
    width: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    ffn: int = 384
    context: int = 2048
    """Longest row, in tokens."""
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    tied: bool = True
    """The output layer is the embedding."""
    qk_norm: bool = True
    """RMSNorm on each head's q and k (Qwen3)."""
    qkv_bias: bool = False
    """Bias on q, k and v (Qwen2)."""
    eos: tuple[int, ...] = ()
    """Tokens that end a turn."""

    @property
    def large(self) -> bool:
        """Whether a model of this shape is a large one (:mod:`ramify.engine.products`)."""
        heads = 2 * (self.heads + self.kv_heads) * self.head_size
        return (self.vocab + self.layers * (heads + 3 * self.ffn)) * self.width >= LARGE

    def to_hf(self) -> dict[str, Any]:
        """The ``config.json`` that transformers reads."""
        kind = "qwen3" if self.qk_norm else "qwen2" if self.qkv_bias else "llama"
        record: dict[str, Any] = {
            "architectures": [f"{kind.capitalize()}ForCausalLM"],
            "model_type": kind,
            "vocab_size": self.vocab,
            "hidden_size": self.width,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "max_position_embeddings": self.context,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
            "rms_norm_eps": self.norm_eps,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "bos_token_id": None,
            "eos_token_id": list(self.eos) if len(self.eos) != 1 else self.eos[0],
            "pad_token_id": None,
            "dtype": "float32",
        }
        if kind != "qwen2":
            record["attention_bias"] = self.qkv_bias
        return record

    @classmethod
    def from_hf(cls, record: dict[str, Any]) -> TinyConfig | None:
        """Read a ``config.json`` record; None where it asks for anything this decoder does not do exactly.

        Raises UserError where it describes no model.
        """
        try:
            return cls._from_hf(record)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError) as error:
            raise UserError(f"config.json describes no model: {type(error).__name__} {error}") from error

    @classmethod
    def _from_hf(cls, record: dict[str, Any]) -> TinyConfig | None:
        kind = record.get("model_type")
        rope = record.get("rope_parameters") or record.get("rope_scaling") or {}
        plain = (
            kind in ("llama", "qwen2", "qwen3")
            and record.get("hidden_act", "silu") == "silu"
            and rope.get("rope_type", rope.get("type", "default")) == "default"
            and not record.get("mlp_bias")
            and not record.get("attention_bias")
            and not record.get("use_sliding_window")
            and set(record.get("layer_types") or ["full_attention"]) == {"full_attention"}
            and "quantization_config" not in record
        )
        if not plain:
            return None
        heads = int(record["num_attention_heads"])
        eos = record.get("eos_token_id")
        return cls(
            vocab=_size(record["vocab_size"], "vocab_size"),
            width=_size(record["hidden_size"], "hidden_size"),
            layers=_size(record["num_hidden_layers"], "num_hidden_layers"),
            heads=heads,
            kv_heads=int(record.get("num_key_value_heads") or heads),
            head_size=int(record.get("head_dim") or record["hidden_size"] // heads),
            ffn=int(record["intermediate_size"]),
            context=_size(record.get("max_position_embeddings", 2048), "max_position_embeddings"),
            rope_theta=float(rope.get("rope_theta", record.get("rope_theta", 10000.0))),
            norm_eps=float(record.get("rms_norm_eps", 1e-6)),
            tied=bool(record.get("tie_word_embeddings", False)),
            qk_norm=kind == "qwen3",
            qkv_bias=kind == "qwen2",
            eos=() if eos is None else (eos,) if isinstance(eos, int) else tuple(eos),
        )


def _size(value: Any, name: str) -> int:
    """A size of a ``config.json``. Raises ValueError where it is not a whole number from 1 to 2^31 - 1."""
    if type(value) is not int or not 0 < value < 1 << 31:
        raise ValueError(f"'{name}' is {str(value)[:40]}, which is not a size")
    return value


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis (Zhang and Sennrich 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Shape in, shape out."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021), halves convention: ``x`` [..., E] with tables broadcastable to it."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def rotary_tables(length: int, head_size: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin, each [length, E]."""
    inverse = 1.0 / (theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size))
    angles = torch.arange(length, dtype=torch.float32)[:, None] * inverse
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, c: TinyConfig) -> None:
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.width, c.heads * c.head_size, bias=c.qkv_bias)
        self.k_proj = nn.Linear(c.width, c.kv_heads * c.head_size, bias=c.qkv_bias)
        self.v_proj = nn.Linear(c.width, c.kv_heads * c.head_size, bias=c.qkv_bias)
        self.o_proj: nn.Module = nn.Linear(c.heads * c.head_size, c.width, bias=False)
        self.qkv_proj: Int8 | None = None
        if c.qk_norm:
            self.q_norm = RMSNorm(c.head_size, c.norm_eps)
            self.k_norm = RMSNorm(c.head_size, c.norm_eps)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor | SharedRows | None) -> Tensor:
        """[B, T, D] to [B, T, D]; with ``mask`` :class:`SharedRows` B is 1."""
        B, T, _ = x.shape
        c = self.c
        if self.qkv_proj is not None:
            parts = self.qkv_proj(x).unflatten(-1, (-1, c.head_size)).split((c.heads, c.kv_heads, c.kv_heads), dim=2)
        else:
            parts = [
                _through(part, x, c.large).unflatten(-1, (-1, c.head_size)) for part in (self.q_proj, self.k_proj, self.v_proj)
            ]
        q, k, v = parts[0], parts[1], parts[2].transpose(1, 2)
        if c.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q.transpose(1, 2), *tables), rotate(k.transpose(1, 2), *tables)
        if isinstance(mask, SharedRows):
            mixed = mask.attend(q, k, v)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=c.kv_heads != c.heads)
        return _through(self.o_proj, mixed.transpose(1, 2).reshape(B, T, -1), c.large)

    def to_int8(self) -> None:
        """See :meth:`TinyLM.to_int8`."""
        self.qkv_proj = _joined([self.q_proj, self.k_proj, self.v_proj])
        self.o_proj = _joined([self.o_proj])
        del self.q_proj, self.k_proj, self.v_proj


def _joined(layers: Sequence[Any]) -> Int8:
    """Layers of the same input as one in int8."""
    biases = [layer.bias for layer in layers if layer.bias is not None]
    return Int8(torch.cat([layer.weight.detach() for layer in layers]), torch.cat(biases) if biases else None)


def _through(layer: nn.Module, x: Tensor, large: bool) -> Tensor:
    if large and isinstance(layer, nn.Linear) and torch.is_inference_mode_enabled():
        return linear(x, layer.weight, layer.bias)
    product: Tensor = layer(x)
    return product


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, c: TinyConfig) -> None:
        super().__init__()
        self.large = c.large
        self.gate_proj = nn.Linear(c.width, c.ffn, bias=False)
        self.up_proj = nn.Linear(c.width, c.ffn, bias=False)
        self.down_proj: nn.Module = nn.Linear(c.ffn, c.width, bias=False)
        self.gate_up_proj: Int8 | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D]."""
        if self.gate_up_proj is not None:
            gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        else:
            gate, up = _through(self.gate_proj, x, self.large), _through(self.up_proj, x, self.large)
        return _through(self.down_proj, F.silu(gate) * up, self.large)

    def to_int8(self) -> None:
        """See :meth:`TinyLM.to_int8`."""
        self.gate_up_proj = _joined([self.gate_proj, self.up_proj])
        self.down_proj = _joined([self.down_proj])
        del self.gate_proj, self.up_proj


class ResidualBlock(nn.Module):
    """Pre-norm residual block."""

    def __init__(self, c: TinyConfig) -> None:
        super().__init__()
        self.self_attn = Attention(c)
        self.mlp = SwiGLU(c)
        self.input_layernorm = RMSNorm(c.width, c.norm_eps)
        self.post_attention_layernorm = RMSNorm(c.width, c.norm_eps)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor | SharedRows | None) -> Tensor:
        """[B, T, D] to [B, T, D]."""
        attended: Tensor = x + self.self_attn(self.input_layernorm(x), tables, mask)
        out: Tensor = attended + self.mlp(self.post_attention_layernorm(attended))
        return out


class Body(nn.Module):
    """Embedding, blocks and the last norm; carries the ``model.`` prefix of the checkpoint's names."""

    def __init__(self, c: TinyConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.width)
        self.layers = nn.ModuleList(ResidualBlock(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.width, c.norm_eps)


class TinyLM(nn.Module):
    """The decoder. ``seed`` decides the initial weights (normal, deviation 0.02, residual outputs scaled by 1/sqrt(2 layers)).

    ``pretrained``: its weights, or those they began with, were not made by ramify."""

    def __init__(self, config: TinyConfig, seed: int | None = 0) -> None:
        super().__init__()
        self.config = config
        self.pretrained = False
        self.model = Body(config)
        self.lm_head: nn.Module | None = None if config.tied else nn.Linear(config.width, config.vocab, bias=False)
        self._tables: tuple[Tensor, Tensor] = rotary_tables(0, config.head_size, config.rope_theta)
        if seed is None:  # to be filled
            return
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.dim() == 2:
                    residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                    weight.normal_(0.0, 0.02 / (2 * config.layers) ** 0.5 if residual else 0.02, generator=generator)
                elif name.endswith("bias"):
                    weight.zero_()

    @property
    def head(self) -> Tensor:
        """The output matrix [V, D]. Raises UserError where it is int8."""
        if isinstance(self.lm_head, Int8):
            refuse_int8(self.lm_head)
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight  # type: ignore[return-value]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.embed_tokens.weight.device

    def to_int8(self) -> None:
        """Round all matrices but the embedding to int8, for good. What was float32 is given back block by block."""
        self.lm_head = Int8(self.head)
        for block in self.model.layers:
            for part in (block.self_attn, block.mlp):
                part.to_int8()  # type: ignore[operator,union-attr]

    def tables(self, length: int) -> tuple[Tensor, Tensor]:
        """Rotary cos and sin of the first ``length`` positions, each [length, E]; grown by doubling.
        Raises UserError past the context."""
        if length > self.config.context:
            raise UserError(f"a row of {length} tokens is longer than the model's context of {self.config.context}")
        cos, sin = self._tables
        if cos.shape[0] < length or cos.device != self.device:
            grown = min(self.config.context, max(length, 2 * cos.shape[0], 64))
            with torch.inference_mode(
                False
            ):  # kept for later calls, which may train: no inference tensor may be saved for backward
                cos, sin = (t.to(self.device) for t in rotary_tables(grown, self.config.head_size, self.config.rope_theta))
            self._tables = (cos, sin)
        return cos[:length], sin[:length]

    def hidden(self, tokens: Tensor, mask: Tensor | None = None, tap: Tap | None = None) -> Tensor:
        """Last hidden state after the final norm, [B, T, D].

        ``tokens`` is int64 [B, T], rows padded on the right with any valid id (causal attention never looks there). ``mask``:
        True where row may attend to column, broadcastable to [B, H, T, T]; None is causal. ``tap`` sees and may replace each
        layer's hidden state [B, T, D]: layer 0 is the embedding, layer i the output of block i.
        """
        return self._through(tokens, self.tables(tokens.shape[1]), mask, tap)

    def hidden_shared(self, rows: SharedRows) -> Tensor:
        """Last hidden state of the distinct tokens of ``rows``, [T, D]: each is what :meth:`hidden` gives in a row of its own."""
        cos, sin = self.tables(int(rows.positions.max()) + 1)
        return self._through(rows.tokens[None], (cos[rows.positions], sin[rows.positions]), rows, None)[0]

    def _through(
        self, tokens: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor | SharedRows | None, tap: Tap | None
    ) -> Tensor:
        x = self.model.embed_tokens(tokens)
        if tap is not None:
            x = tap(0, x)
        for layer, block in enumerate(self.model.layers, 1):
            x = block(x, tables, mask)
            if tap is not None:
                x = tap(layer, x)
        normed: Tensor = self.model.norm(x)
        return normed

    def forward(self, tokens: Tensor, mask: Tensor | None = None, tap: Tap | None = None) -> Tensor:
        """Logits [B, T, V]; arguments as in :meth:`hidden`."""
        hidden = self.hidden(tokens, mask, tap)
        return self.lm_head(hidden) if isinstance(self.lm_head, Int8) else F.linear(hidden, self.head)

    def save(self, folder: Path | str, tokenizer: HfTokenizer | None = None) -> None:
        """Write ``config.json``, ``model.safetensors`` and, if given, the tokenizer (with the chat template, where it has its
        tags); each file whole or not at all. Raises UserError where weights are int8."""
        refuse_int8(self)
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        write_whole(folder / "model.safetensors", save(weights, metadata={"format": "pt"}))
        record = self.config.to_hf() | ({} if self.pretrained else {SCRATCH: True})
        texts = {"config.json": json.dumps(record, indent=2) + "\n"}
        if tokenizer is not None:
            texts["tokenizer.json"] = tokenizer.to_json()
            tagged = all(tokenizer.raw.token_to_id(tag) is not None for tag in SPECIALS)
            special = {"eos_token": END} if tagged else {}
            texts["tokenizer_config.json"] = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special}) + "\n"
            if tagged:
                texts["chat_template.jinja"] = TAG_JINJA
        for name, text in texts.items():
            write_whole(folder / name, text)

    @classmethod
    def load(cls, folder: Path | str, weights: bool = True) -> TinyLM:
        """Read a checkpoint of the Llama, Qwen2 or Qwen3 type as float32; without ``weights`` their shapes alone, on torch's
        device meta. Raises UserError naming what is missing or does not fit."""
        folder = Path(folder)
        record = read_config(folder)
        config = TinyConfig.from_hf(record)
        if config is None:
            raise UserError(
                f"{folder / 'config.json'}: model_type {record.get('model_type')!r} is not a plain Llama, Qwen2 or Qwen3"
            )
        files = _weight_files(folder)
        shapes = {name: shape for stored in files.values() for name, shape in stored.items()}
        model = cls._sized(config, shapes, folder)
        if config.tied:
            shapes.pop("lm_head.weight", None)
        present = dict(model.named_parameters())
        for name in sorted(present.keys() | shapes.keys()):
            if name not in shapes or name not in present:
                raise UserError(f"{folder}: weight '{name}' is {'missing' if name in present else 'not one this model has'}")
            if shapes[name] != present[name].shape:
                raise UserError(f"{folder}: weight '{name}' is {shapes[name]}, expected {tuple(present[name].shape)}")
        if not weights:
            model.to("meta")
        for file, names in files.items() if weights else ():
            _fill(present, file, [name for name in names if name in present])
        model.pretrained = not record.get(SCRATCH)
        return model.eval()

    @classmethod
    def _sized(cls, config: TinyConfig, shapes: dict[str, tuple[int, ...]], folder: Path) -> TinyLM:
        """An empty model of the shape of ``config``,
        which is made only where the file's first weights have it: a size costs memory."""
        layer, size = "model.layers.0.", config.head_size
        wanted = {"model.embed_tokens.weight": (config.vocab, config.width)} | {
            f"{layer}self_attn.q_proj.weight": (config.heads * size, config.width),
            f"{layer}self_attn.k_proj.weight": (config.kv_heads * size, config.width),
            f"{layer}mlp.gate_proj.weight": (config.ffn, config.width),
        }
        for name, shape in wanted.items():
            if shapes.get(name) != shape:
                raise UserError(f"{folder}: weight '{name}' is {shapes.get(name, 'missing')}, expected {shape}")
        if config.layers > len(shapes):
            raise UserError(f"{folder} has weights for fewer layers than the {config.layers} of its config.json")
        try:
            with _unfilled():
                model = cls(config, seed=None)
        except (RuntimeError, ValueError, TypeError, OverflowError, ZeroDivisionError) as error:
            raise UserError(f"{folder / 'config.json'} describes no model: {error}") from error
        if config.large:
            for part in model.model.layers.modules():
                if isinstance(part, nn.Linear):
                    part.weight.data = by_columns(part.weight.shape)
        return model


def read_config(folder: Path) -> dict[str, Any]:
    """The record in ``folder/config.json``. Raises UserError when it is missing or not a JSON object."""
    file = folder / "config.json"
    record = read_record(file, "the model's")
    if not isinstance(record.get("model_type", ""), str):
        raise UserError(f"{file}: 'model_type' must be a name, not {str(record['model_type'])[:40]}")
    return record


def _weight_files(folder: Path) -> dict[Path, dict[str, tuple[int, ...]]]:
    """The shapes of the weights in each file of a checkpoint, by name."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise UserError(f"{folder} holds no model.safetensors")
    shapes: dict[Path, dict[str, tuple[int, ...]]] = {}
    for file in files:
        with _weights_in(file) as tensors:
            shapes[file] = {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    return shapes


def _fill(parameters: Mapping[str, nn.Parameter], file: Path, names: Sequence[str]) -> None:
    """Read weights into place. A file's pages count as memory while it is open: it is opened anew for every PART of them."""
    pieces: list[tuple[str, slice]] = []
    for name in names:
        rows = max(1, PART * len(parameters[name]) // max(1, parameters[name].nbytes))
        if not parameters[name].is_contiguous():  # by columns: torch is quick to turn a whole matrix
            rows = len(parameters[name])
        pieces += [(name, slice(at, at + rows)) for at in range(0, len(parameters[name]), rows)]
    while pieces:
        with _weights_in(file) as tensors, torch.no_grad():
            read = 0
            while pieces and read < PART:
                name, part = pieces.pop()
                into = parameters[name][part]
                values = tensors.get_slice(name)[part]
                if into.is_contiguous():
                    into.copy_(values)
                else:
                    into.t().copy_(values.t())
                read += into.nbytes


@contextmanager
def _unfilled() -> Iterator[None]:
    """Layers that are made begin with whatever is in memory, which costs nothing until they are filled."""
    kinds: tuple[Any, ...] = (nn.Linear, nn.Embedding)
    kept = [kind.reset_parameters for kind in kinds]
    try:
        for kind in kinds:
            kind.reset_parameters = lambda layer: None
        yield
    finally:
        for kind, begin in zip(kinds, kept, strict=True):
            kind.reset_parameters = begin


@contextmanager
def _weights_in(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except Exception as error:  # safetensors raises its own error type, not exported
        raise UserError(f"cannot read the weights in {file.parent}: {error}") from error


def distinct_weights(module: nn.Module) -> dict[str, Tensor]:
    """The module's ``state_dict`` with every tensor once: of weights that are one tensor (tied embeddings) the first name
    only. Raises UserError where some are int8."""
    refuse_int8(module)
    return _distinct(module)


def _distinct(module: nn.Module) -> dict[str, Tensor]:
    distinct: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in module.state_dict().items():
        if value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            distinct[name] = value.detach()
    return distinct


def set_distinct_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Inverse of :func:`distinct_weights`: names that share a tensor continue sharing it.

    Raises UserError where ``weights`` are not those of such a module.
    """
    present = distinct_weights(module)
    for name in sorted(present.keys() | weights.keys()):
        if name not in weights or name not in present:
            raise UserError(f"weight '{name}' is {'missing' if name in present else 'not one this model has'}")
        if weights[name].shape != present[name].shape:
            raise UserError(f"weight '{name}' is {tuple(weights[name].shape)}, expected {tuple(present[name].shape)}")
    module.load_state_dict(dict(weights), strict=False)


def weights_hash(module: nn.Module) -> str:
    """Content hash of a model: every tensor's name, type, shape and bytes (a shared tensor once) and,
    for a TinyLM, its shape record."""

    def parts() -> Iterator[str | bytes | memoryview]:
        yield "weights"
        if isinstance(module, TinyLM):
            yield canonical_json(asdict(module.config))
        for name, value in _distinct(module).items():
            raw = value.cpu().contiguous()
            yield from (name, str(raw.dtype), str(tuple(raw.shape)))
            yield raw.view(-1).view(torch.uint8).numpy().data if raw.numel() else b""

    return hash_of(parts())
