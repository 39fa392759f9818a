"""The local engine beside a hand-written decoding loop and beside transformers' ``generate``, in interleaved pairs.

    python benchmarks/engine.py [--pairs 9] [--json]

A 1.05 M-parameter decoder, CPU, prompt 32, 96 new tokens. The loops run the module over a static cache with exactly as many rows
as the batch, all in step, and return tokens only; "loop" calls the module's own layers, "fused loop" is tuned as far as a static
batch allows. The engine also returns log-probabilities and entropies, can admit or drop a row at every token, and gives each row
the same bits in any batch, for which it runs 4 rows even where only one is wanted. Peers are run turn about with the engine, and
the figure is the median of the pair ratios (engine speed / peer speed) with its quartiles.
The fork table counts forward rows, padding included; it involves no clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import ramify.engine  # noqa: F401  (pins the matrix kernels before torch first uses them)
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM, rotary_tables, rotate
from ramify.model.protocol import Prefix, Sampling

PROMPT, NEW = 32, 96
CONFIG = TinyConfig(vocab=512, width=128, layers=5, heads=4, kv_heads=2, head_size=32, ffn=384, context=512)


def prompts(batch: int, round_: int) -> np.ndarray:
    """int32 [batch, PROMPT]; new ones every round, so that no cache helps."""
    return np.random.default_rng((batch, round_)).integers(0, CONFIG.vocab, (batch, PROMPT)).astype(np.int32)


class Loop:
    """A plain decoding loop over the module's own layers: static cache, B rows in step, categorical sampling."""

    def __init__(self, module: TinyLM) -> None:
        self.c, self.module = module.config, module
        self.tables = rotary_tables(PROMPT + NEW, self.c.head_size, self.c.rope_theta)

    def run(self, rows: np.ndarray) -> torch.Tensor:
        c, batch = self.c, len(rows)
        with torch.inference_mode():
            cache = torch.zeros((c.layers, 2, batch, c.kv_heads, PROMPT + NEW, c.head_size))
            tokens = torch.from_numpy(rows.astype(np.int64))
            out = torch.empty((batch, NEW), dtype=torch.long)
            start = 0
            for t in range(NEW):
                x = self.blocks(F.embedding(tokens, self.module.model.embed_tokens.weight), cache, start, start + tokens.shape[1])
                logits = F.linear(self.module.model.norm(x[:, -1]), self.module.head)
                start += tokens.shape[1]
                tokens = torch.multinomial(logits.softmax(-1), 1)
                out[:, t : t + 1] = tokens
        return out

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: torch.Tensor, start: int, stop: int
    ) -> torch.Tensor:
        """q, k, v [B, T, heads, E] to [B, T, D]."""
        cache[0, :, :, start:stop], cache[1, :, :, start:stop] = k.transpose(1, 2), v.transpose(1, 2)
        keys, values = cache[0, :, :, :stop], cache[1, :, :, :stop]
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, is_causal=stop - start > 1, enable_gqa=True)
        return mixed.transpose(1, 2).reshape(*q.shape[:2], -1)

    def blocks(self, x: torch.Tensor, cache: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        shape = (*x.shape[:2], -1, self.c.head_size)
        cos, sin = (t[start:stop, None] for t in self.tables)
        for layer, block in enumerate(self.module.model.layers):
            a = block.self_attn
            normed = block.input_layernorm(x)
            q, k = a.q_norm(a.q_proj(normed).view(shape)), a.k_norm(a.k_proj(normed).view(shape))
            v = a.v_proj(normed).view(shape)
            x = x + a.o_proj(self.attend(rotate(q, cos, sin), rotate(k, cos, sin), v, cache[layer], start, stop))
            x = x + block.mlp(block.post_attention_layernorm(x))
        return x


class FusedLoop(Loop):
    """The same loop tuned as far as a static batch allows: q/k/v and gate/up in one matrix each,
    residual adds inside the products."""

    def __init__(self, module: TinyLM) -> None:
        super().__init__(module)
        with torch.inference_mode():
            self.fused = [self.fuse(block) for block in module.model.layers]
            self.tables[1][:, : self.c.head_size // 2].neg_()

    def fuse(self, block: Any) -> tuple[torch.Tensor, ...]:
        c, a, mlp = self.c, block.self_attn, block.mlp
        return (
            block.input_layernorm.weight,
            torch.cat((a.q_proj.weight, a.k_proj.weight, a.v_proj.weight)),
            torch.cat((a.q_norm.weight.expand(c.heads, -1), a.k_norm.weight.expand(c.kv_heads, -1))),
            a.o_proj.weight.t(),
            block.post_attention_layernorm.weight,
            torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)),
            mlp.down_proj.weight.t(),
        )

    def blocks(self, x: torch.Tensor, cache: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        c, (B, T, D) = self.c, x.shape
        cos, sin = (t[start:stop, None] for t in self.tables)
        for layer, (norm1, qkv, norms, out, norm2, gate_up, down) in enumerate(self.fused):
            mixed = F.linear(F.rms_norm(x, (D,), norm1, c.norm_eps), qkv).view(B, T, -1, c.head_size)
            qk = F.rms_norm(mixed[:, :, : c.heads + c.kv_heads], (c.head_size,), None, c.norm_eps).mul_(norms)
            qk = torch.addcmul(torch.roll(qk, c.head_size // 2, -1).mul_(sin), qk, cos)
            attended = self.attend(
                qk[:, :, : c.heads], qk[:, :, c.heads :], mixed[:, :, c.heads + c.kv_heads :], cache[layer], start, stop
            )
            x = torch.addmm(x.view(B * T, D), attended.view(B * T, -1), out)
            both = F.linear(F.rms_norm(x, (D,), norm2, c.norm_eps), gate_up)
            x = torch.addmm(x, F.silu(both[:, : c.ffn]).mul_(both[:, c.ffn :]), down).view(B, T, D)
        return x


def engine_run(model: LocalModel, rows: np.ndarray) -> None:
    async def go() -> None:
        await asyncio.gather(*(model.sample(Prefix(row), 1, Sampling(max_tokens=NEW), [i]) for i, row in enumerate(rows)))

    asyncio.run(go())


def pairs(ours: Callable[[int], Any], peer: Callable[[int], Any], count: int) -> dict[str, float]:
    """Median ratio peer time / our time with quartiles, and both median times in seconds; who goes first alternates."""
    for i in range(3):
        ours(count + i), peer(count + i)
    ratios, own, other = [], [], []
    for i in range(count):
        seconds = {}
        for name, run in (("a", ours), ("b", peer)) if i % 2 else (("b", peer), ("a", ours)):
            began = time.perf_counter()
            run(i)
            seconds[name] = time.perf_counter() - began
        ratios.append(seconds["b"] / seconds["a"])
        own.append(seconds["a"])
        other.append(seconds["b"])
    low, median, high = statistics.quantiles(ratios, n=4)
    return {"ratio": median, "low": low, "high": high, "ours_s": statistics.median(own), "peer_s": statistics.median(other)}


def transformers_peer(module: TinyLM) -> Callable[[int], Any]:
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        module.save(Path(folder))
        other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def run(i: int) -> Any:
        rows = torch.from_numpy(prompts(1, i).astype(np.int64))
        return other.generate(
            rows,
            attention_mask=torch.ones_like(rows),
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            do_sample=True,
            top_k=0,
            pad_token_id=0,
        )

    return run


def forks(module: TinyLM) -> list[dict[str, float]]:
    """Forward rows of n forks at one node against one prefix and n suffixes."""
    table = []
    for prefix, n, new in ((200, 64, 30), (32, 64, 96), (500, 64, 5), (200, 8, 30), (200, 200, 30)):
        model = LocalModel(module, cache_bytes=1 << 26)
        row = np.random.default_rng(prefix).integers(0, CONFIG.vocab, min(prefix, CONFIG.context - new)).astype(np.int32)
        asyncio.run(model.sample(Prefix(row), n, Sampling(max_tokens=new), range(n)))
        s, ideal = model.stats, len(row) + n * new
        table.append(
            {
                "prefix": len(row),
                "forks": n,
                "new": new,
                "rows": s.forward_rows,
                "padding": s.padded_rows,
                "ratio": s.forward_rows / ideal,
            }
        )
    return table


def compare(module: TinyLM, threads: list[int], count: int) -> list[dict[str, Any]]:
    """One record a pairing of thread count, batch size and peer."""
    loops: dict[str, Loop] = {"loop": Loop(module), "fused loop": FusedLoop(module)}
    generate = transformers_peer(module)
    records: list[dict[str, Any]] = []
    for number in threads:
        torch.set_num_threads(number)
        for batch in (1, 32):
            peers: dict[str, Callable[[int], Any]] = {
                name: (lambda i, loop=loop, batch=batch: loop.run(prompts(batch, i))) for name, loop in loops.items()
            }
            if batch == 1:
                peers["generate"] = generate
            for name, peer in peers.items():
                model = LocalModel(module, cache_bytes=1 << 23)  # full after the warm-up: no new memory while the clock runs
                found = pairs(lambda i, model=model, batch=batch: engine_run(model, prompts(batch, i)), peer, count)
                records.append(
                    {"threads": number, "batch": batch, "peer": name, "tokens_s": batch * NEW / found["ours_s"], **found}
                )
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    module = TinyLM(CONFIG)
    speed, counts = compare(module, arguments.threads, arguments.pairs), forks(module)
    if arguments.json:
        print(json.dumps({"parameters": sum(p.numel() for p in module.parameters()), "speed": speed, "forks": counts}))
        return
    print("threads batch peer        engine tok/s   ratio [quartiles]")
    for r in speed:
        print(
            f"{r['threads']:7} {r['batch']:5} {r['peer']:10} {r['tokens_s']:13.0f}   {r['ratio']:.2f} [{r['low']:.2f}, "
            f"{r['high']:.2f}]"
        )
    print("\nprefix forks  new  forward rows (padding)   rows / (prefix + forks x new)")
    for f in counts:
        print(f"{f['prefix']:6} {f['forks']:5} {f['new']:4}  {f['rows']:12} ({f['padding']:6})   {f['ratio']:.3f}")


if __name__ == "__main__":
    main()
