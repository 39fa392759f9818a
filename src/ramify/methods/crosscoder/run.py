"""What the verbs do: open two checkpoints, keep their states, score prompts under a change,
export directions and fixed vectors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base import codec
from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.base.files import read_record, refusal, write_whole
from ramify.base.ids import json_hash, stable_hash
from ramify.base.ledger import Ledger
from ramify.base.waiting import wait_for
from ramify.engine.checkpoints import model_folder
from ramify.engine.hidden import stream
from ramify.engine.local import LocalModel
from ramify.engine.named import find_continuing, is_local
from ramify.engine.pairs import open_pair
from ramify.methods.crosscoder.algorithm import tool_call
from ramify.methods.crosscoder.dictionary import Dictionary
from ramify.methods.crosscoder.record import CapturedFrom, KeptScores
from ramify.methods.crosscoder.steer import StateChange, sample, static_vector
from ramify.model.chat import RawTemplate
from ramify.model.protocol import Sampling
from ramify.rollout.token_traces import TokenProblem, TokenTrace, read_problems
from ramify.score.judge import Each, Item, Judge, find_judge, judged, truth
from ramify.trace.db import Run

SCORES = "scores"
"""Kind of the journal's entries: :class:`KeptScores`."""


@dataclass
class Checkpoints:
    """The tuned model and its base, and the layer after whose block (1: the first) their states are read and changed.

    Raises UserError where their widths or tokenizers differ (``other_tokenizer`` allows the latter) or there is no such layer.
    """

    tuned: LocalModel
    base: LocalModel
    layer: int
    other_tokenizer: bool = False

    def __post_init__(self) -> None:
        widths = [model.forward.width for model in self.models]
        if widths[0] != widths[1]:
            raise UserError(f"the models' hidden states differ in width ({widths[0]} and {widths[1]}): they share no dictionary")
        layers = min(model.forward.layers for model in self.models)
        if not 1 <= self.layer <= layers:
            raise UserError(f"layer {self.layer} does not exist; the models' blocks are 1 to {layers}")
        hashes = [model.identity.tokenizer for model in self.models]
        if hashes[0] != hashes[1] and not self.other_tokenizer:
            raise UserError(
                "the models have different tokenizers, so one row of tokens is not one text (--other-tokenizer overrides)"
            )

    @property
    def models(self) -> tuple[LocalModel, LocalModel]:
        """Tuned, base: the order of a dictionary's models."""
        return self.tuned, self.base

    @classmethod
    def open(cls, tuned: str, base: str, layer: int, other_tokenizer: bool = False) -> Checkpoints:
        """By name: ``hf:FOLDER``, a folder, or the folder of a LoRA adapter.
        Raises NeedsError on a model without weights here."""
        for name in (tuned, base):
            if ":" in name and not Path(name).is_dir():
                model_folder(name)  # refuses endpoints before any request is sent
        if other_tokenizer:
            found = [find_continuing(name if ":" in name or is_local(name) else f"hf:{name}")[0] for name in (tuned, base)]
        else:
            pair = open_pair(tuned, base, together=True)
            found = [pair.policy.model(), pair.reference.model()]
        return cls(found[0], found[1], layer, other_tokenizer)  # type: ignore[arg-type]


def capture(
    models: Checkpoints,
    rows: Sequence[Sequence[int] | np.ndarray],
    first: Sequence[int] | None = None,
    batch_tokens: int = 8192,
) -> np.ndarray:
    """States of both models at the last token of each of N rows of token ids, float32 [N, 2, D]; each model runs once.

    With ``first`` (N,) at every token of a row from that one on, row after row.
    """
    starts = [len(row) - 1 for row in rows] if first is None else list(first)
    ends = np.cumsum([len(row) - start for row, start in zip(rows, starts, strict=True)])
    out = np.empty((int(ends[-1]) if len(ends) else 0, 2, models.tuned.forward.width), np.float32)
    for number, model in enumerate(models.models):
        for batch in stream(model, rows, [models.layer], batch_tokens=batch_tokens):
            for i, states in zip(batch.rows, batch.states, strict=True):
                kept = states[starts[i] : len(rows[i]), 0]
                out[ends[i] - len(kept) : ends[i], number] = kept.float().cpu().numpy()
    return out


def with_replies(
    models: Checkpoints, prompts: Sequence[Sequence[int]], tokens: int, stops: Sequence[int] = ()
) -> list[list[int]]:
    """Each of ``prompts`` (token ids) with the tuned model's likeliest reply of so many tokens, but for the last of them: states
    of these rows from the prompt's last token on are those that decide the reply."""
    settings = Sampling(temperature=0.0, max_tokens=tokens, stop_tokens=tuple(stops))
    rows = [np.asarray(prompt, np.int32) for prompt in prompts]
    replies = wait_for(sample(models.tuned, rows, models.layer, None, settings, 0))
    sampled = [[] if reply.tokens is None else reply.tokens.tolist() for reply in replies]
    return [[*prompt, *reply[:-1]] for prompt, reply in zip(prompts, sampled, strict=True)]


@dataclass
class States:
    """Hidden states [N, 2, D] of two models on two corpora, and where they came from."""

    values: np.ndarray
    tool: np.ndarray
    """Whether a row is of the corpus of interest, bool [N]."""
    about: CapturedFrom = field(default_factory=CapturedFrom)
    text: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Number of the text that a row is of, int [N]: rows of one text are no independent ones. Nothing given: each is its own."""

    def __post_init__(self) -> None:
        if not len(self.text):
            self.text = np.arange(len(self.values))

    def save(self, folder: Path) -> None:
        """Write ``states.npy``, ``tool.npy``, ``text.npy`` and ``states.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in (("states", self.values), ("tool", self.tool), ("text", self.text)):
            np.save(folder / f".{name}.npy", array, allow_pickle=False)
            (folder / f".{name}.npy").replace(folder / f"{name}.npy")
        write_whole(folder / "states.json", json.dumps(codec.to_json(self.about), indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> States:
        """Memory-mapped. Raises UserError where the folder holds no states, or of one corpus only."""
        try:
            values = np.load(folder / "states.npy", mmap_mode="r", allow_pickle=False)
            tool = np.load(folder / "tool.npy", allow_pickle=False)
            kept = folder / "text.npy"  # states of earlier versions have one row of each text, and no such file
            text = np.load(kept, allow_pickle=False) if kept.is_file() else np.arange(len(values))
            about = codec.from_json(CapturedFrom, read_record(folder / "states.json", "captured states"), str(folder))
        except OSError as error:
            raise refusal(f"{folder} holds no captured states", error) from error
        except ValueError as error:
            raise UserError(f"{folder} holds no captured states: {error}") from error
        marks = tool.shape == text.shape == values.shape[:1] and tool.dtype == bool and text.dtype.kind == "i"
        if values.ndim != 3 or values.shape[1] != 2 or not marks:
            raise UserError(f"{folder}: states {values.shape} and marks {tool.shape} are not [rows, 2, width] and [rows]")
        return cls(values, tool, about, text)


def prompts(path: Path, models: Checkpoints, template: Any = None, longest: int = 0) -> list[TokenProblem]:
    """Prompts of a file as :func:`ramify.rollout.token_traces.read_problems` reads them;
    ``template`` None leaves their text as it is.

    ``longest`` cuts a prompt after so many tokens, as the paper does (0: never). Raises UserError naming file and line.
    """
    if template is None and models.tuned.tokenizer is not None:
        template = RawTemplate(models.tuned.tokenizer)
    read = read_problems(path, template)
    return [dataclasses.replace(one, prompt_ids=one.prompt_ids[:longest]) for one in read] if longest else read


class _Called(Each):
    """``call`` and ``toolrl``: whether the text calls one of ``data["tools"]``,
    by its exact name or by the paper's fuzzy rule."""

    def __init__(self, name: str) -> None:
        self.name, self.identity = name, stable_hash("crosscoder", name, 1)

    async def one(self, item: Item) -> bool:
        """Raises UserError where the item lists no tools."""
        names = item.data.get("tools")
        if not isinstance(names, list) or not names or not all(isinstance(one, str) for one in names):
            raise UserError(f"prompt '{item.id}' lists no tools: the score '{self.name}' reads their names from data.tools")
        return tool_call(item.text, names, "exact" if self.name == "call" else "toolrl")[1]


def find_score(name: str) -> Judge:
    """``call`` (a listed tool is called, by its exact name), ``toolrl`` (the paper's fuzzy rule), or any judge by name.

    The first two read the tools' names from ``data.tools`` of a prompt; a function of your own takes (text, trace).
    """
    kinds: dict[str, Callable[[str], Judge]] = {
        "call": lambda argument: _Called("call"),
        "toolrl": lambda argument: _Called("toolrl"),
    }
    return find_judge(name, takes=("text", "trace"), kinds=kinds, seconds=10.0, what="score")


class CachedScores:
    """Scores of N prompts under changes of one model, greedy, kept in a run: a change that was scored is not run again.

    A reply is judged at each of ``budgets`` tokens; a call returns the scores at the largest, and :attr:`at` keeps them all.
    """

    def __init__(
        self,
        models: Checkpoints,
        target: int,
        problems: Sequence[TokenProblem],
        judge: Judge,
        budgets: Sequence[int] = (50, 100, 200),
        kept: Run | None = None,
        seed: int = 0,
        name: str = "",
        stops: Sequence[int] = (),
        ledger: Ledger | None = None,
    ) -> None:
        """``name``: what ``judge`` is called, so that another one's kept scores are not taken for its own. ``stops``: tokens that
        end a reply beside the model's own end. ``ledger``: where the judge's cost goes."""
        self.models, self.target, self.problems, self.judge = models, target, list(problems), judge
        self.budgets, self.kept, self.seed = sorted(set(budgets)), kept, seed
        self.ledger = Ledger() if ledger is None else ledger
        self.stops = tuple(dict.fromkeys([*models.models[target].eos, *stops]))
        if not self.problems or not self.budgets or self.budgets[0] < 1:
            raise UserError("scores need at least one prompt and one budget of at least one token")
        self.at: dict[str, np.ndarray] = {}
        """Key of a change -> scores [N, budgets]."""
        model = models.models[target]
        # what a stored score depends on in addition to the change itself
        inputs = [[list(map(int, one.prompt_ids)), dict(one.data)] for one in self.problems]
        self._key = stable_hash(
            model.identity.weights, str(models.layer), str(self.budgets), name, str(self.stops), json_hash(inputs)
        )
        for entry in () if kept is None else kept.journal(SCORES):
            known = codec.from_json(KeptScores, entry.payload, f"{entry.kind} '{entry.key}'")
            if known.place == self._key:
                self.at[known.change] = np.asarray(known.scores, np.float64)

    def key(self, change: StateChange | None) -> str:
        """The name of a change in the run."""
        return "clean" if change is None else stable_hash(np.ascontiguousarray(change.delta).tobytes())

    def __call__(self, change: StateChange | None) -> np.ndarray:
        """Scores (N,) at the largest budget. Raises what the engine raises,
        and InfrastructureError("scorer") where the judge could not run."""
        key = self.key(change)
        if key not in self.at:
            self.at[key] = wait_for(self._run(change))
            if self.kept is not None:
                row = KeptScores(self._key, key, self.at[key].tolist(), self.judge.identity)
                self.kept.log(SCORES, stable_hash(self._key, key), codec.to_json(row))
                self.kept.commit()
        return self.at[key][:, -1]

    async def _run(self, change: StateChange | None) -> np.ndarray:
        model = self.models.models[self.target]
        if model.tokenizer is None:
            raise NeedsError(f"'{model.name}' has no tokenizer, so replies cannot be read")
        settings = Sampling(temperature=0.0, max_tokens=self.budgets[-1], stop_tokens=self.stops)
        rows = [np.asarray(one.prompt_ids, np.int32) for one in self.problems]
        sampled = await sample(model, rows, self.models.layer, change, settings, self.seed)
        items = []
        for problem, reply in zip(self.problems, sampled, strict=True):
            tokens = [] if reply.tokens is None else [int(token) for token in reply.tokens]
            for budget in self.budgets:
                tokens_kept = tokens[:budget]
                trace = TokenTrace(problem.id, problem.id, problem.prompt_ids, tuple(tokens_kept), settings, data=problem.data)
                # without the token that ended the reply, as judges of whole replies read it
                text = model.tokenizer.decode(tokens_kept[:-1] if tokens_kept and tokens_kept[-1] in self.stops else tokens_kept)
                items.append(Item(text, problem.id, data=problem.data, trace=trace))
        found = await judged(self.judge, items, self.ledger)
        if failure := next((one.failure for one in found if one.failure), ""):
            raise InfrastructureError("scorer", failure)
        return np.array([bool(truth(self.judge, one)) for one in found], np.float64).reshape(len(rows), len(self.budgets))


def export(
    dictionary: Dictionary, tool_codes: np.ndarray, features: Sequence[int], gain: float, target: int, folder: Path
) -> None:
    """Write what other tools read: ``directions.safetensors`` (``directions`` [F, D] of the target in its own units, ``steering``
    [n, D], the fixed vectors of ``features`` at ``gain``), ``directions.json``, and the dictionary as an autoencoder over both
    models' states side by side in the files of sae-lens (``cfg.json``, ``sae_weights.safetensors``;
    JumpReLU, or TopK where k is per row), the normaliser folded in.
    """
    from safetensors.numpy import save

    vectors = np.stack([static_vector(dictionary, tool_codes, i, gain, target) for i in features])
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"directions": dictionary.directions(target).float().cpu().numpy(), "steering": vectors}
    write_whole(folder / "directions.safetensors", save({name: np.ascontiguousarray(value) for name, value in tensors.items()}))
    record = {
        "target": "ab"[target],
        "features": [int(i) for i in features],
        "gain": gain,
        "norms": np.linalg.norm(vectors, axis=1).tolist(),
    }
    write_whole(folder / "directions.json", json.dumps(record, indent=1) + "\n")
    c = dictionary.config
    mean, spread = (t.detach().cpu().numpy().reshape(-1) for t in (dictionary.mean, dictionary.scale))
    encoder, decoder = (w.detach().cpu().numpy().reshape(c.features, -1) for w in (dictionary.encoder, dictionary.decoder))
    bias = dictionary.decoder_bias.detach().cpu().numpy().reshape(-1)
    inner = mean / spread + (bias if c.centred else 0)
    weights = {
        "W_enc": (encoder / spread).T,
        "b_enc": dictionary.encoder_bias.detach().cpu().numpy() - encoder @ inner,
        "W_dec": decoder * spread,
        "b_dec": bias * spread + mean,
    }
    if c.topk == "batch":
        weights["threshold"] = dictionary.threshold.detach().cpu().numpy()
    write_whole(
        folder / "sae_weights.safetensors", save({k: np.ascontiguousarray(v, dtype=np.float32) for k, v in weights.items()})
    )
    kind: dict[str, Any] = {"architecture": "topk", "k": c.k, "rescale_acts_by_decoder_norm": False}
    if c.topk == "batch":
        kind = {"architecture": "jumprelu"}
    cfg = kind | {
        "d_in": c.models * c.width, "d_sae": c.features, "dtype": "float32", "device": "cpu",
        "apply_b_dec_to_input": False, "normalize_activations": "none", "reshape_activations": "none",
        "metadata": {"made_by": "ramify crosscoder", "input": "the states of model a, then of model b, at one position"},
    }  # fmt: skip
    write_whole(folder / "cfg.json", json.dumps(cfg, indent=1) + "\n")
