"""A model that runs in this process: many concurrent samples batched together, on the engine's own cache.

Log-probabilities returned by :meth:`LocalModel.logprobs` come from an ordinary padded forward pass. They agree with those
returned by :meth:`LocalModel.sample` to about 1e-5, not bit for bit.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as GenericSequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramify.base.errors import InfrastructureError, NeedsError, RamifyError, UserError
from ramify.engine.adapters import add_adapter, is_adapter, whole_folder
from ramify.engine.batch import UNIT
from ramify.engine.cache import KVCache
from ramify.engine.core import EngineCore
from ramify.engine.drafters import Drafter, load_drafter
from ramify.engine.forward import Exactness, Forward, TinyForward, exactness
from ramify.engine.generation import FILE as GENERATION
from ramify.engine.generation import read_generation
from ramify.engine.gguf import gguf_file, unpacked
from ramify.engine.grammar import Grammars
from ramify.engine.products import in_int8, side_by_side
from ramify.engine.profile import FILE as PROFILE
from ramify.engine.profile import Profile
from ramify.engine.sampling import adjusted, check
from ramify.engine.scheduler import Scheduler
from ramify.engine.schedules import schedule_of
from ramify.engine.sequence import Request, Sequence, Stats
from ramify.engine.speculate import SpecStats, Speculator
from ramify.engine.taps import States, Taps
from ramify.engine.tiny import SCRATCH, TinyConfig, TinyLM, read_config, weights_hash
from ramify.model.chat import ChatTemplate, template_in
from ramify.model.protocol import CLIENT, Completion, Identity, Prefix, Sampling, TokenScores
from ramify.model.scripted import refuse_real_calls
from ramify.model.streaming import Pieces, Report, reported
from ramify.model.tokenizer import HfTokenizer

QUANTUM = 256
"""Tokens after which a row gives way where other clients wait with fewer rows."""
TURN, STEPS = 0.005, 8
"""Seconds, and steps, that the engine continues before it lets other tasks of the event loop run (at once when a sample
finished): a long step keeps nobody waiting for another, and a fast machine samples no further ahead of a request that comes than
a slow one."""
ROOM = 1.5
"""Memory of running rows for what their positions take: slots grow by doubling, and are copied as they do."""
SCORE_TOKENS, SCORE_LOGITS = 8192, 1 << 22
"""Most tokens of one scoring batch; most logits held at once while scoring."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    max_sequences: int
    quantum: int
    max_waiting: int | None
    cache_bytes: int | None
    kv_bytes: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Tapped:
    """A sample with the hidden states its taps read: layer -> position -> float32 (D,)."""

    completion: Completion
    states: States


class LocalModel:
    """Implements :class:`ramify.model.protocol.Model` for a :class:`TinyLM` or a transformers causal language model.

    ``max_sequences`` bounds the samples that run at once; ``cache_bytes`` the memory of finished prefixes kept for reuse (by
    default that of 32,768 tokens, at most 1 GiB); ``kv_bytes`` that of the rows that run (None: no bound but ``max_sequences``
    and the context), for which rows wait again where it is short; ``max_waiting`` the samples that may wait alongside them: more
    raise BusyError. Rows are shared fairly between clients (:data:`ramify.model.protocol.CLIENT`):
    where others wait, a row gives way after ``quantum`` tokens.

    ``drafter`` drafts tokens, as many as ``schedule`` says (:mod:`ramify.engine.schedules`; by default stale2 with a ``profile``,
    which gives the costs, else whole blocks). Samples have the same distribution with it, and the same tokens where ``verify`` is
    coupled (:mod:`ramify.engine.verify`).

    ``template`` renders chats as tokens; by default that of the checkpoint in ``folder``, where it came from.

    Use one object from one event loop at a time.
    """

    def __init__(
        self,
        module: nn.Module,
        tokenizer: HfTokenizer | None = None,
        *,
        template: ChatTemplate | None = None,
        folder: Path | None = None,
        name: str = "local",
        eos: GenericSequence[int] | None = None,
        max_sequences: int = 64,
        cache_bytes: int | None = None,
        kv_bytes: int | None = None,
        max_waiting: int | None = None,
        quantum: int = QUANTUM,
        drafter: Drafter | None = None,
        schedule: str = "",
        profile: Profile | None = None,
        verify: str = "coupled",
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        for option, value in (("max_sequences", max_sequences), ("quantum", quantum)):
            if value < 1:
                raise UserError(f"{option} is {value}; it must be at least 1")
        self.module, self.tokenizer, self.name = module, tokenizer, name
        self.folder, self.own_template = folder, template
        self.defaults = dict(defaults or {})
        self.forward: Forward = _forward_of(module)
        self._exact, self._int8 = self.forward.dtype == torch.float32, in_int8(module)
        if drafter is not None:
            _check_drafted(name, self.placed["dtype"])
        self.eos = tuple(_eos_of(module) if eos is None else eos)
        self._bounds = _Bounds(max_sequences, quantum, max_waiting, cache_bytes, kv_bytes)
        self._weights = ""
        self._grammars = Grammars(tokenizer, self.forward.vocab, self.eos)
        speculator = None
        if drafter is not None:
            prior, block = None if profile is None else profile.prior, drafter.config.block
            if profile is not None:
                profile.check(self.identity.weights, weights_hash(drafter))
            chosen = schedule_of(schedule or ("stale2" if profile else f"fixed:{block}"), block, profile, prior)
            speculator = Speculator(drafter, chosen, self.forward.layers, verify, prior)
        self._begin(speculator)

    def _begin(self, speculator: Speculator | None) -> None:
        """Start with no rows and nothing cached."""
        bounds, forward = self._bounds, self.forward
        layers = forward.layers + (speculator.layers if speculator else 0)
        position = forward.dtype.itemsize * layers * forward.kv_size  # bytes
        cache_bytes = min(1 << 30, 32_768 * position) if bounds.cache_bytes is None else bounds.cache_bytes
        most = None if bounds.kv_bytes is None else bounds.kv_bytes // position
        spare = UNIT + (speculator.block if speculator else 0)
        stored = speculator.stored if speculator else None
        cache = KVCache(
            layers,
            forward.kv_size,
            forward.device,
            most,
            forward.dtype,
            spare=spare,
            prefix_bytes=cache_bytes,
            bare=forward.layers,
            stored=stored,
        )
        if cache.longest == 0:
            raise UserError(f"kv_bytes is {bounds.kv_bytes}; the smallest cache of '{self.name}' has {256 * position}")
        self._speculator = speculator
        self._driver: asyncio.Task[None] | None = None
        self._scheduler = Scheduler(cache, forward.context, bounds.max_sequences, bounds.quantum, bounds.max_waiting, speculator)
        self._core = EngineCore(self._scheduler, forward, self.tokenizer, self.eos, lambda: self.exactness)

    def speculating(self, speculator: Speculator) -> LocalModel:
        """The same model with rows and a cache of its own, and ``speculator`` to draft for them."""
        other = copy(self)
        other._begin(speculator)
        return other

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        base: Path | None = None,
        device: str = "",
        dtype: str = "",
        drafter: Drafter | Path | str | None = None,
        weights: bool = True,
        **options: Any,
    ) -> LocalModel:
        """Open a checkpoint folder (config.json, safetensors, tokenizer.json), or that of a LoRA adapter,
        which is added to its base, or a GGUF file or a folder that holds one.

        Plain Llama, Qwen2 and Qwen3 checkpoints take the fast path; others, and all in bfloat16, run through transformers, with
        code from the checkpoint never executed. ``base`` stands in for the base that an adapter names; ``device`` and ``dtype``
        as in :func:`ramify.engine.devices.placement`; a ``drafter`` may be named by its folder, whose profile then is the one by
        default; further ``options`` as in the constructor, where ``eos`` and ``defaults`` come from generation_config.json by
        default. Without ``weights`` it is a model to count and check with, which takes no memory and samples nothing. Raises
        UserError when the folder cannot be read, NeedsError when its cache cannot be forked.
        """
        from ramify.engine.devices import placement

        folder = Path(path)
        if (file := gguf_file(folder)) is not None:
            folder = unpacked(file)
        target, numbers = placement(device, dtype)
        whole = base or whole_folder(folder)
        record = read_config(whole)
        _refuse_pickles(whole)
        tokens = folder if (folder / "tokenizer.json").is_file() else whole
        tokenizer = HfTokenizer.load(tokens) if (tokens / "tokenizer.json").is_file() else None
        module: nn.Module
        if numbers != torch.bfloat16 and TinyConfig.from_hf(record) is not None:
            module = TinyLM.load(whole, weights)
        else:
            from ramify.engine.generic import load_transformers

            module = load_transformers(whole, weights)
        if weights and is_adapter(folder):
            add_adapter(module, folder)
        generation = read_generation(folder if (folder / GENERATION).is_file() else whole)
        own: dict[str, Any] = {
            "name": folder.name + "-int8" * (numbers == torch.int8),
            "folder": tokens,
            "eos": generation.eos,
            "defaults": generation.sampling,
        } | options
        if isinstance(drafter, Path | str):
            _check_drafted(own["name"], str(numbers).removeprefix("torch."))
            at = Path(drafter)
            drafter = load_drafter(at, module)
            if own.get("profile") is None and (at / PROFILE).is_file():
                own["profile"] = Profile.load(at)
        if not weights:
            module = module.to(torch.float32 if numbers == torch.int8 else numbers)
        elif numbers == torch.int8:
            _to_int8(module)
        else:
            module = module.to(target, numbers)
        return cls(module, tokenizer, drafter=drafter, **own)

    @cached_property
    def exactness(self) -> Exactness:
        """How rows run on this machine: probed where it is first asked for, which is not by what samples nothing."""
        real = self.forward.device.type != "meta"
        return exactness(self.forward) if self._exact and real else Exactness.UNPROVEN

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The chat template: as given, else the checkpoint's; None where there is no usable one."""
        if self.own_template is None and self.folder is not None and self.tokenizer is not None:
            with suppress(
                UserError, NeedsError
            ):  # callers that need a template use template_of, which reports what is wrong with it
                return template_in(self.folder, self.tokenizer)
        return self.own_template

    @property
    def identity(self) -> Identity:
        """Name, content hash of the weights, hash of the tokenizer."""
        if not self._weights:
            self._weights = weights_hash(self.module)
        return Identity(self.name, self._weights, "" if self.tokenizer is None else self.tokenizer.hash)

    @property
    def capabilities(self) -> frozenset[str]:
        """All that this machine supports: ``batch_invariant`` is included if a way to run sequences that guarantees it was found
        at load."""
        found = {"tokens", "continue", "logprobs", "prompt_logprobs", "entropy", "taps", "penalties"}
        if self.tokenizer is not None:
            found.add("grammar")
        if not self._exact:
            return frozenset(found)  # a row's bits depend on its batch, and an optimiser's small steps would be lost
        if not self._int8:
            found.add("train")
        if self._speculator is not None and self._speculator.distribution != "coupled":
            return frozenset(found)  # how much is drafted depends on the load, and so does what is sampled
        return frozenset(found | {"seeds"} | ({"batch_invariant"} if self.exactness is not Exactness.UNPROVEN else set()))

    @property
    def pretrained(self) -> bool:
        """Whether its weights, or those they began with, were not made by ramify: so what they know cannot be trained again."""
        if isinstance(self.module, TinyLM):
            return self.module.pretrained
        return not getattr(self.module.config, SCRATCH, False)

    @property
    def placed(self) -> dict[str, str]:
        """``device`` and ``dtype`` as :meth:`load` takes them."""
        dtype = "int8" if self._int8 else str(self.forward.dtype).removeprefix("torch.")
        return {"device": str(self.forward.device), "dtype": dtype}

    @property
    def stats(self) -> Stats:
        """Counts since the start, in tokens."""
        return self._scheduler.stats

    @property
    def speculation(self) -> SpecStats | None:
        """Rounds, drafts and what they cost since the start; None without a drafter."""
        return None if self._speculator is None else self._speculator.stats

    def sampling_bytes(self, rows: int, longest: int, tokens: int) -> int:
        """Memory that sampling takes, about: the weights, the keys and values of ``rows`` rows at once of at most ``longest``
        tokens (:data:`ROOM` times that, as slots grow by doubling), and of finished prefixes with ``tokens`` tokens, as far as
        they are kept."""
        forward = self.forward
        position = forward.dtype.itemsize * forward.layers * forward.kv_size
        running = int(ROOM * position * rows * min(longest, self.context))
        kept = min(self._scheduler.cache.prefixes.budget, position * tokens)
        return sum(weight.nbytes for weight in self.module.parameters()) + running + kept

    @property
    def context(self) -> int:
        """Longest row, in tokens."""
        return self._scheduler.context

    def forget(self) -> None:
        """Forget every cached prefix, and give back the memory of keys and values and the work space. Raises UserError while
        sampling."""
        if self._scheduler.busy:
            raise UserError(f"the weights of '{self.name}' cannot change while it is sampling")
        self._scheduler.reset()
        self.forward.refresh()

    def refresh(self) -> None:
        """Take over weights changed in place: forgets every cached prefix and changes the identity.
        Raises UserError while sampling."""
        self.forget()
        if self._speculator is not None:
            self._speculator.drafter.eval()
        self._weights = ""

    # -- sampling

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: GenericSequence[int]) -> list[Completion]:
        """See :meth:`ramify.model.protocol.Model.sample`. Raises UserError on bad input,
        InfrastructureError("engine") on a failure."""
        return [tapped.completion for tapped in await self._sample(prefix, n, settings, keys, None)]

    async def sample_tapped(
        self, prefix: Prefix, n: int, settings: Sampling, keys: GenericSequence[int], taps: Taps
    ) -> list[Tapped]:
        """As :meth:`sample`, with hidden states read and patched. Taps without edits change no bit of what is sampled."""
        taps.check(self.forward.layers, self.forward.width)
        return await self._sample(prefix, n, settings, keys, taps)

    def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        """See :class:`ramify.model.streaming.StreamingModel`; the whole sample's ``data`` say how many tokens the cache held."""

        async def start(report: Report) -> Completion:
            done = 0

            def progress(seq: Sequence) -> None:
                nonlocal done
                report(seq.sampled[done:], seq.logprobs[done:], seq.model_logprobs[done:])
                done = len(seq.logprobs)

            (seq,) = await self._sequences(prefix, 1, settings, [key], None, progress)
            usage = {"prompt_tokens": len(seq.group.prefix), "completion_tokens": len(seq.sampled), "cached_tokens": seq.cached}
            return replace(self._completion_of(seq), data={"usage": usage})

        return reported(start, self.tokenizer)

    @property
    def gauges(self) -> dict[str, float | list[float]]:
        """Metrics of the engine for a server: samples that run and wait,
        and the counts of :attr:`stats`; a list counts by position."""
        scheduler, spec = self._scheduler, self.speculation
        waiting, used = scheduler.waiting.count, scheduler.cache.bytes
        found = {"rows": len(scheduler.running), "rows_waiting": waiting, "memory_bytes": used, **asdict(self.stats)}
        if spec is not None:
            found |= {**asdict(spec), "tau": spec.tau, "budget": spec.budget}
        return found

    async def _sample(
        self, prefix: Prefix, n: int, settings: Sampling, keys: GenericSequence[int], taps: Taps | None
    ) -> list[Tapped]:
        return [Tapped(self._completion_of(seq), seq.states) for seq in await self._sequences(prefix, n, settings, keys, taps)]

    async def _sequences(
        self,
        prefix: Prefix,
        n: int,
        settings: Sampling,
        keys: GenericSequence[int],
        taps: Taps | None,
        progress: Callable[[Sequence], None] | None = None,
    ) -> list[Sequence]:
        tokens = self._checked(prefix.tokens, room=1)
        check(settings, self.forward.vocab)
        if n < 1 or len(keys) != n:
            raise UserError(f"{n} samples need as many keys, at least one; {len(keys)} were given")
        if settings.stop_texts and self.tokenizer is None:
            raise UserError(f"stop_texts need a tokenizer, which '{self.name}' has not")
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        results: dict[int, Sequence] = {}

        def done(request: Request, outcome: Sequence | Exception) -> None:
            if isinstance(outcome, Exception):
                if not waiting.done():
                    waiting.set_exception(outcome)
                return
            results[request.number] = outcome
            if len(results) == n and not waiting.done():
                waiting.set_result(None)

        shapers = await self._grammars.shapers(settings, tokens, n)
        pairs = zip(keys, shapers, strict=True)
        requests = [Request(key, settings, done, progress, CLIENT.get(), shaper) for key, shaper in pairs]
        self._scheduler.add(tokens, requests, taps)
        self._wake()
        try:
            await waiting
        except BaseException:
            for request in requests:
                request.cancelled = True
            self._scheduler.drop_cancelled()
            raise
        return [results[request.number] for request in requests]

    def _wake(self) -> None:
        if self._driver is None or self._driver.done() or self._driver.get_loop() is not asyncio.get_running_loop():
            self._driver = asyncio.get_running_loop().create_task(self._drive())
            # Ctrl-C ends the loop by itself: the task that it came in has nothing more to say
            self._driver.add_done_callback(lambda driver: driver.cancelled() or driver.exception())

    async def _drive(self) -> None:
        """Step while there is work. Lets other tasks run first, so that samples requested together start together."""
        await asyncio.sleep(0)
        since, steps = time.monotonic(), 0
        while self._scheduler.busy:
            try:
                finished = self._core.step()
            except BaseException as error:  # any error becomes the failure of every waiting sample
                failure = (
                    error if isinstance(error, RamifyError) else InfrastructureError("engine", f"{error}" or type(error).__name__)
                )
                for request in self._scheduler.reset():
                    request.done(request, failure)
                if isinstance(error, Exception):
                    return
                raise  # Ctrl-C is for the loop, too
            steps += 1
            if finished or steps == STEPS or time.monotonic() - since > TURN:
                await asyncio.sleep(0)
                since, steps = time.monotonic(), 0

    def _completion_of(self, seq: Sequence) -> Completion:
        sampled = seq.sampled
        tokens = np.array(sampled, dtype=np.int32)
        model = np.array(seq.model_logprobs, dtype=np.float32)
        same = seq.request.settings.plain()
        text, ends = ("", None) if self.tokenizer is None else (self.tokenizer.decode(sampled), self.tokenizer.ends(sampled))
        return Completion(
            text=text,
            stop=seq.stop,
            tokens=tokens,
            logprobs=model if same else np.array(seq.logprobs, dtype=np.float32),
            model_logprobs=model,
            entropy=np.array(seq.entropy, dtype=np.float32),
            ends=ends,
            cached=seq.cached,
        )

    # -- scoring

    async def logprobs(
        self,
        tokens: GenericSequence[np.ndarray],
        top_k: int = 0,
        taps: Taps | None = None,
        settings: Sampling | None = None,
        entropy: bool = True,
    ) -> list[TokenScores]:
        """Score given rows at temperature 1; memory grows with neither V x T nor the number of rows. Patches apply to every row.

        With ``settings`` the scores under these sampling settings come along (``sampler_logprobs``; ``ban_first`` bans nothing
        here). Without ``entropy`` nothing is computed but what is requested.
        """
        rows = [self._checked(row, room=0) for row in tokens]
        if not 0 <= top_k <= self.forward.vocab:
            raise UserError(f"top_k is {top_k}; the model knows {self.forward.vocab} tokens")
        if taps is not None:
            taps.check(self.forward.layers, self.forward.width)
        if settings is not None:
            check(settings, self.forward.vocab)
            if settings.penalised or settings.grammar:
                raise UserError("given tokens are not scored under a grammar or penalties, which depend on where a reply begins")
        scores: dict[int, TokenScores] = {}
        for batch in batches_of([len(row) for row in rows]):
            try:
                for i, score in zip(batch, self._score([rows[i] for i in batch], top_k, taps, settings, entropy), strict=True):
                    scores[i] = score
            except RuntimeError as error:  # torch: out of memory, a device fault
                raise InfrastructureError("engine", str(error)) from error
            await asyncio.sleep(0)
        return [scores[i] for i in range(len(rows))]

    async def chosen_logprobs(self, tokens: GenericSequence[np.ndarray]) -> list[np.ndarray]:
        """Log-probs of given rows' own tokens and nothing else, float32 (T,) each: the cheapest score there is."""
        return [scores.logprobs for scores in await self.logprobs(tokens, entropy=False)]

    async def hidden(
        self, tokens: GenericSequence[np.ndarray], positions: GenericSequence[GenericSequence[int]]
    ) -> list[np.ndarray]:
        """Last hidden states of given rows, after the final norm: float32 (K, D) for the K ``positions`` of each row.

        The state at position p is the one that predicts token p + 1. Raises UserError on a position outside its row."""
        rows = [self._checked(row, room=0) for row in tokens]
        wanted = [np.asarray(places, dtype=np.int64) for places in positions]
        for row, places in zip(rows, wanted, strict=True):
            if len(places) and not 0 <= places.min() <= places.max() < len(row):
                raise UserError(f"a hidden state is wanted outside of a row of {len(row)} tokens")
        found: dict[int, np.ndarray] = {}
        for batch in batches_of([len(row) for row in rows]):
            padded = np.zeros((len(batch), max(len(rows[i]) for i in batch)), np.int64)
            for at, i in enumerate(batch):
                padded[at, : len(rows[i])] = rows[i]
            try:
                with torch.inference_mode():
                    states = self.forward.full(torch.from_numpy(padded).to(self.forward.device), None)
                    for at, i in enumerate(batch):
                        found[i] = states[at, torch.from_numpy(wanted[i])].float().cpu().numpy()
            except RuntimeError as error:  # torch: out of memory, a device fault
                raise InfrastructureError("engine", str(error)) from error
            await asyncio.sleep(0)
        return [found[i] for i in range(len(rows))]

    def _score(
        self, rows: list[np.ndarray], top_k: int, taps: Taps | None, settings: Sampling | None, entropy: bool
    ) -> list[TokenScores]:
        lengths = [len(row) for row in rows]
        there = np.arange(max(lengths)) < np.array(lengths)[:, None]
        filled = np.zeros(there.shape, np.int64)
        filled[there] = np.concatenate(rows)
        padded, scored = (torch.from_numpy(array).to(self.forward.device) for array in (filled, there[:, 1:]))

        def tap(layer: int, x: Tensor) -> Tensor:
            for i, length in enumerate(lengths):
                if taps is not None:
                    taps.apply_row(layer, x[i], length, {})
            return x

        with torch.inference_mode():
            hidden = self.forward.full(padded, None if taps is None else tap)
            found = self._score_tokens(hidden[:, :-1][scored], padded[:, 1:][scored], top_k, settings, entropy)
            return _by_row(found, lengths)

    def _score_tokens(
        self, hidden: Tensor, tokens: Tensor, top_k: int, settings: Sampling | None, entropy: bool
    ) -> dict[str, np.ndarray]:
        """Scores of ``tokens`` [N] given the hidden states before them [N, D],
        a stretch at a time: arrays (N,) and (N, top_k)."""
        n, flags = len(tokens), {"entropy": entropy, "certainty": top_k > 0, "sampler_logprobs": settings is not None}
        names = ["logprobs", *(name for name, wanted in flags.items() if wanted)]
        # made before the loop: small results kept from every stretch would sit in the holes that its large tables leave behind
        out = {name: np.zeros(n, np.float32) for name in names}
        if top_k:
            out |= {"top_logprobs": np.zeros((n, top_k), np.float32), "top_tokens": np.zeros((n, top_k), np.int32)}
        step = max(1, SCORE_LOGITS // self.forward.vocab)
        for start in range(0, n, step):
            chosen = tokens[start : start + step, None]
            model = F.log_softmax(self.forward.logits(hidden[start : start + step]).float(), dim=-1)
            found = {"logprobs": model.gather(1, chosen)[:, 0]}
            if entropy:
                found["entropy"] = -(model.exp() * model).nansum(-1)
            if top_k:
                found["top_logprobs"], found["top_tokens"] = model.topk(top_k, dim=-1)
                found["certainty"] = -model.mean(-1) - math.log(self.forward.vocab)
            if settings is not None:
                sampled_from = adjusted(model.double(), [settings] * len(model), [False] * len(model))
                found["sampler_logprobs"] = sampled_from.gather(1, chosen)[:, 0]
            for name, values in found.items():
                out[name][start : start + step] = values.cpu().numpy()
        return out

    # -- checks

    def _checked(self, tokens: np.ndarray | None, room: int) -> np.ndarray:
        refuse_real_calls(f"'{self.name}'")
        if tokens is None:
            raise UserError(f"'{self.name}' continues token ids, and the prefix has none")
        row = np.ascontiguousarray(tokens, dtype=np.int32)
        if row.ndim != 1 or not len(row):
            raise UserError("a prefix or row of tokens is empty; give at least one token")
        outside = row[(row < 0) | (row >= self.forward.vocab)]
        if len(outside):
            raise UserError(f"token {int(outside[0])} is out of range; '{self.name}' knows 0 to {self.forward.vocab - 1}")
        longest = self.context if room else self.forward.context  # what is only scored takes nothing of the cache
        if len(row) + room > longest:
            why = f" ({bound})" if (bound := getattr(self.forward, "bound", "")) else ""
            raise InfrastructureError("engine", f"{len(row)} tokens do not fit the context of {longest} of '{self.name}'{why}")
        return row


def _refuse_pickles(folder: Path) -> None:
    """Raises UserError where the only weights are pickles."""
    pickles = [name for name in ("pytorch_model.bin", "pytorch_model.bin.index.json") if (folder / name).is_file()]
    if pickles and not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{folder} has its weights in {pickles[0].removesuffix('.index.json')}, a pickle, which may run code when it is "
            "opened; "
            "save them as safetensors where you trust them: AutoModelForCausalLM.from_pretrained(OLD).save_pretrained(NEW)"
        )


def _check_drafted(name: str, dtype: str) -> None:
    if dtype != "float32":
        raise UserError(f"a drafter goes with float32, and the weights of '{name}' are {dtype}")


def _to_int8(module: nn.Module) -> None:
    if isinstance(module, TinyLM):
        module.to_int8()
    else:
        from ramify.engine.generic import to_int8

        to_int8(module)
    module.requires_grad_(False)
    side_by_side(module)


def _forward_of(module: nn.Module) -> Forward:
    if isinstance(module, TinyLM):
        return TinyForward(module)
    from ramify.engine.generic import HfForward

    return HfForward(module)


def _eos_of(module: nn.Module) -> tuple[int, ...]:
    if isinstance(module, TinyLM):
        return module.config.eos
    from ramify.engine.generic import eos_tokens

    return eos_tokens(module)


def batches_of(lengths: GenericSequence[int], tokens: int = SCORE_TOKENS) -> list[list[int]]:
    """Row numbers by falling length, in batches of at most ``tokens`` padded tokens (one row at least)."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def _by_row(scores: dict[str, np.ndarray], lengths: GenericSequence[int]) -> list[TokenScores]:
    """Arrays over all scored tokens cut into rows, entry 0 of each, which has nothing before it, set to 0."""
    ends = np.cumsum(lengths)
    starts = np.cumsum([0, *(length - 1 for length in lengths[:-1])])
    whole = {name: np.insert(values, starts, 0, axis=0) for name, values in scores.items()}
    return [
        TokenScores(**{name: values[end - length : end] for name, values in whole.items()})
        for end, length in zip(ends, lengths, strict=True)
    ]
