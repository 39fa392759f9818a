"""The pool: workers that are endpoints, local models or functions, and the one way to call them.
A failure is typed; it is never a wrong answer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from ramify.base.budget import Budget
from ramify.base.config import Config, check, read_toml
from ramify.base.errors import BudgetSpentError, InfrastructureError, UserError, nearest
from ramify.base.ids import stable_hash
from ramify.base.ledger import Ledger
from ramify.base.plugins import own_path
from ramify.engine.named import find_model, own_model, registered_model
from ramify.model.chat import ChatTemplate, own_template, template_of
from ramify.model.function import AnyModel, model_of
from ramify.model.laid import Layout, TooLongError
from ramify.model.protocol import NO_LIMIT, Completion, Model, Prefix, Sampling, context_of, eos_of, known_capabilities
from ramify.model.streaming import Piece
from ramify.rollout.compact import approximate_tokens
from ramify.rollout.sampler import FailurePolicy, SamplePosition, Sampler, sampled_tokens
from ramify.trace.message import Message

FAILURES = {
    "timeout": "no answer in time",
    "refusal": "the provider withheld the reply, or it is empty",
    "rate": "too many requests",
    "connection": "no connection, or it broke off",
    "length": "the conversation does not fit the worker",
    "failed": "anything else that went wrong at the worker",
    "down": "not asked, since it had no connection a moment ago",
}
"""How a call fails. None of these is a reward of 0."""
_KINDS = {
    "timeout": "timeout",
    "filtered": "refusal",
    "empty": "refusal",
    "rate": "rate",
    "connection": "connection",
    "cut": "connection",
}
MILLION = 1_000_000


class WorkerConfig(Config):
    """A worker of a pool file."""

    name: str = Field(min_length=1)
    """Its name in reports; a composer never sees it."""
    model: str = Field(min_length=1)
    """hf:PATH, chat:MODEL@URL, completions:MODEL@URL, FILE.py:FUNCTION, or any model by name."""
    price: tuple[float, float] = (0.0, 0.0)
    """USD a million tokens: of prompts, of replies."""
    context: int = Field(0, ge=0)
    """Most tokens of a conversation, the reply included; 0: as the model says."""
    tags: list[str] = Field(default_factory=list)
    """Words to exclude it by."""


class PoolConfig(Config):
    """A pool file (TOML)."""

    workers: list[WorkerConfig] = Field(default_factory=list)
    """Its workers; the order is their identity for a composer."""
    seconds: float = Field(120.0, gt=0)
    """Most seconds of a call."""
    retries: int = Field(1, ge=0)
    """Further tries of a call that failed and may succeed later."""
    rest: float = Field(30.0, ge=0)
    """Seconds for which a worker that is down is not asked; 0: it is asked every time."""


@dataclass(frozen=True)
class PoolWorker:
    """A black box: messages in, a message out. ``model`` is a model, its name,
    or a function of messages (or of messages and key)."""

    name: str
    model: AnyModel
    price: tuple[float, float] = (0.0, 0.0)
    """USD a million tokens: of prompts, of replies."""
    context: int = 0
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CallResult:
    """What a call came to: a completion, or a failure of one of the kinds in :data:`FAILURES`."""

    worker: int
    completion: Completion | None
    failure: str = ""
    why: str = ""
    seconds: float = 0.0
    usd: float = 0.0
    given: int = 0
    """Tokens of the prompt, as its server counts them, else estimated."""
    sampled: int = 0
    dropped: int = 0
    """Characters that were left out of the oldest messages to fit the worker."""
    cached: bool = False
    shown: tuple[Message, ...] = field(default=(), repr=False)

    @property
    def text(self) -> str:
        """The reply; empty of a failure."""
        return "" if self.completion is None else self.completion.text


def failure_of(error: TimeoutError | InfrastructureError, seconds: float) -> tuple[str, str]:
    """Which of :data:`FAILURES` an error of a model is that had ``seconds``, and why."""
    if isinstance(error, TimeoutError):
        return "timeout", f"no answer within {seconds:g} s"
    return _KINDS.get(error.kind, "failed"), error.message


def open_model(given: AnyModel) -> tuple[Model, ChatTemplate | None]:
    """A model and the template that lays chats out for it, None where it takes messages. No endpoint is asked anything before its
    first call: one that is down is not a reason against the others. Raises UserError or NeedsError where there is none."""
    if isinstance(given, str) and own_path(given) is None:
        return (registered_model(given), None) if given.startswith("chat:") else find_model(given)
    found = own_model(given) if isinstance(given, str) else model_of(given)
    rendered_here = hasattr(found, "unasked") and own_template(found) is not None  # an endpoint that is sent token ids
    if isinstance(found, Layout) or not (rendered_here or "tokens" in known_capabilities(found)):
        return found, None
    return found, template_of(found)


def open_worker(given: AnyModel) -> Model:
    """A model that takes messages; see :func:`open_model`."""
    found, template = open_model(given)
    return found if template is None else Layout(found, template)


def enders_of(model: Model) -> frozenset[int]:
    """The tokens that end a reply of a local model, whose text is in the reply's."""
    template = own_template(model)
    return frozenset((*eos_of(model), *(() if template is None else template.stop_tokens)))


def spoken(model: Model, completion: Completion) -> Completion:
    """A reply without the token that ends it."""
    tokens, ends = completion.tokens, completion.ends
    if tokens is None or ends is None or not len(tokens) or int(tokens[-1]) not in enders_of(model):
        return completion
    return replace(completion, text=completion.text[: int(ends[-2]) if len(ends) > 1 else 0])


class Spoken:
    """Tells the text of a reply as its pieces come, without the token that ends it, which is then the beginning of what
    :func:`spoken` makes of the whole. Blanks wait for what is none, since a reply of blanks alone is a refusal."""

    def __init__(self, model: Model, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self._enders, self._held, self._length = enders_of(model), "", 0

    def __call__(self, piece: Piece) -> None:
        """Take the next piece."""
        text, tokens, ends = piece.text, piece.tokens, piece.ends
        if tokens is not None and ends is not None and len(tokens) and int(tokens[-1]) in self._enders:
            text = text[: max(0, int(ends[-2]) - self._length) if len(ends) > 1 else 0]
        self._length += len(piece.text)
        self._held += text
        if self._held.strip():
            self.tell(self._held)
            self._held = ""


MISSES = {"connection": 3, "timeout": 1, "cut": 1, "server": 1}
"""How much a failure says that a model is down, by the kind of its error: at 3 in a row it is."""


class Rest:
    """Whether a model is down: for ``seconds`` after it had no connection (when all retries are over), or failed three times in a
    row without an answer. Then one call may find out whether it is back, while others still pass it over. 0 seconds: never."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock = seconds, clock
        self._misses, self._until, self._why = 0, -math.inf, ""

    @property
    def why(self) -> str:
        """Why it is not to be asked now; empty where it may be."""
        return self._why if self.left > 0 else ""

    @property
    def left(self) -> float:
        """Seconds until it may be asked."""
        return max(0.0, self._until - self.clock())

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around a call: its errors pass through. While one asks a model that was down, the others wait for the end of it. Calls
        that fail at the same time count once."""
        before = self._misses
        if self._misses >= MISSES["connection"]:
            self._until = self.clock() + self.seconds
        try:
            yield
        except (TimeoutError, InfrastructureError) as error:
            kind = "timeout" if isinstance(error, TimeoutError) else error.kind
            row = max(self._misses, min(before, self._misses) + MISSES.get(kind, 0))
            self._misses = row if kind in MISSES and self.seconds else 0
            self._why = error.message if isinstance(error, InfrastructureError) else "it did not answer in time"
            self._until = self.clock() + self.seconds if self._misses >= MISSES["connection"] else -math.inf
            raise
        except BaseException:  # it ended before it could tell, as when its client left: the next may find out
            self._until = -math.inf
            raise
        self._misses, self._until = 0, -math.inf


class ModelPool:
    """An ordered list of workers. Every call goes through :meth:`call`; ``ledger`` has what was spent, by worker, cached calls
    apart. ``rests`` says which are down: none is asked for ``rest`` seconds after it had no connection, while another is left.

    ``seed`` and a call's position decide its sample, never time or order. With ``cached`` equal calls at equal positions are made
    once. Raises UserError on no worker, and on a name that is there twice.
    """

    def __init__(
        self,
        workers: Sequence[PoolWorker],
        *,
        seed: int = 0,
        seconds: float = 120.0,
        retries: int = 1,
        rest: float = 30.0,
        cached: bool = False,
    ) -> None:
        if not workers:
            raise UserError("the pool has no worker")
        self.workers = tuple(workers)
        for at, one in enumerate(self.workers):
            if one.name in self.names[:at]:
                raise UserError(f"two workers of the pool are called '{one.name}'")
            if min(one.price) < 0 or not all(price < float("inf") for price in one.price):
                raise UserError(f"the price of worker '{one.name}' is {one.price}; it is two numbers of 0 or more")
        self.models = [open_worker(one.model) for one in self.workers]
        self.seed, self.seconds, self.rest, self.ledger = seed, seconds, rest, Ledger()
        self.rests = [Rest(rest) for _ in self.models]
        policy = FailurePolicy(dict.fromkeys(("provider", "engine"), retries))
        self._samplers = [Sampler(model, seed, retries=policy) for model in self.models]
        self._cache: dict[str, CallResult] | None = {} if cached else None

    def __len__(self) -> int:
        return len(self.workers)

    @property
    def names(self) -> list[str]:
        """Names in order."""
        return [one.name for one in self.workers]

    @property
    def identity(self) -> str:
        """Hash of names and models, in order."""
        return stable_hash(
            "pool", *(part for w, m in zip(self.workers, self.models, strict=True) for part in (w.name, m.identity.weights))
        )

    def available(self, exclude: Collection[str] = (), failed: Collection[int] = ()) -> list[bool]:
        """Which workers may be chosen: none whose name or tag is in ``exclude``, none in ``failed``. Raises UserError on a word
        that names nothing, and where none is left."""
        known = {*self.names, *(tag for one in self.workers for tag in one.tags)}
        for word in exclude:
            if word not in known:
                raise UserError(f"--exclude '{word}': no worker has this name or tag ({nearest(word, known)})")
        found = [
            one.name not in exclude and not one.tags & set(exclude) and at not in failed for at, one in enumerate(self.workers)
        ]
        if not any(found):
            raise UserError("every worker is excluded, unavailable or has failed: none is left to choose")
        return found

    def forget(self) -> None:
        """Drop remembered calls, where there are any."""
        if self._cache is not None:
            self._cache.clear()

    def check_router(self, workers: Sequence[str]) -> None:
        """Raises UserError where a router was trained for other workers."""
        if list(workers) != self.names:
            raise UserError(f"the router chooses among {', '.join(workers)}, and the pool has {', '.join(self.names)}")

    def index(self, name: str) -> int:
        """Number of a worker. Raises UserError with the nearest name."""
        if name not in self.names:
            raise UserError(f"the pool has no worker '{name}' ({nearest(name, self.names)})")
        return self.names.index(name)

    def best(self, name: str, exclude: Collection[str] = ()) -> int:
        """The worker of ``--best``. Raises UserError where there is none of that name, and where it is excluded."""
        if not self.available(exclude)[self.index(name)]:
            raise UserError(f"--best '{name}' is excluded: name another worker")
        return self.index(name)

    def cost(self, worker: int, given: float, sampled: float) -> float:
        """USD of a call with so many tokens."""
        price = self.workers[worker].price
        return (given * price[0] + sampled * price[1]) / MILLION

    async def call(
        self,
        worker: int,
        messages: Sequence[Message],
        settings: Sampling,
        position: SamplePosition,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        budget: Budget | None = None,
        index: int | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> CallResult:
        """Ask a worker; ``tell`` is called with the text of its reply as it comes, the last piece perhaps excepted. Raises
        BudgetSpentError before a call that would exceed the budget (replies counted at ``max_tokens``), and UserError or
        NeedsError where the worker cannot follow ``settings``; every other failure is in the result."""
        shown, dropped = fitted(messages, self._room(worker, settings))
        key = ""
        if self._cache is not None:
            said = [part for one in shown for part in (one.role, one.text)]
            key = stable_hash(worker, self.models[worker].identity.weights, str(settings.to_json()), str(position), index, *said)
            if key in self._cache:
                known = self._cache[key]
                self._spend(replace(known, cached=True), budget)
                return replace(known, cached=True, usd=0.0)
        estimate = sum(approximate_tokens(one.text) + 4 for one in shown)
        self._require(worker, estimate, settings, budget)
        began = time.monotonic()
        completion, failure, why = await self._asked(
            worker, Prefix(messages=tuple(shown), tools=tuple(tools)), settings, position, index, tell
        )
        given = sampled = 0
        if completion is not None:
            usage = (completion.data or {}).get("usage") or {}
            given, sampled = (
                int(usage.get("prompt_tokens") or estimate),
                sampled_tokens(completion) or approximate_tokens(completion.text),
            )
        result = CallResult(
            worker,
            completion,
            failure,
            why,
            time.monotonic() - began,
            self.cost(worker, given, sampled),
            given,
            sampled,
            dropped,
            shown=tuple(shown),
        )
        self._spend(result, budget)
        if self._cache is not None and completion is not None:
            self._cache[key] = result
        return result

    async def _asked(
        self,
        worker: int,
        prefix: Prefix,
        settings: Sampling,
        position: SamplePosition,
        index: int | None,
        tell: Callable[[str], None] | None,
    ) -> tuple[Completion | None, str, str]:
        model, sampler = self.models[worker], self._samplers[worker]
        aloud = None if tell is None else Spoken(model, tell)
        try:
            with self.rests[worker].watching():
                async with asyncio.timeout(self.seconds):
                    completion = spoken(model, await sampler.one(prefix, settings, position, index, "worker", tell=aloud))
        except (TimeoutError, InfrastructureError) as error:
            return None, *failure_of(error, self.seconds)
        except TooLongError as error:
            return None, "length", str(error)
        if not completion.text.strip() and not completion.message.calls:
            return None, "refusal", "the reply is empty"
        return completion, "", ""

    def _room(self, worker: int, settings: Sampling) -> int:
        """Tokens that a conversation may have; 0: unknown."""
        most = self.workers[worker].context or context_of(self.models[worker]) or 0
        return 0 if not most else max(16, most - (settings.max_tokens if settings.max_tokens < NO_LIMIT else most // 4))

    def _require(self, worker: int, given: int, settings: Sampling, budget: Budget | None) -> None:
        if budget is None:
            return
        budget.require()
        most = self.cost(worker, given, 0 if settings.max_tokens >= NO_LIMIT else settings.max_tokens)
        if most > budget.remaining("money") or budget.remaining("calls") < 1:
            raise BudgetSpentError(
                f"the budget has {budget.remaining('money'):.4g} USD left, and a call of '{self.names[worker]}' may cost "
                f"{most:.4g}"
            )

    def _spend(self, result: CallResult, budget: Budget | None) -> None:
        amounts = {"calls": 1.0, "given_tokens": float(result.given), "sampled_tokens": float(result.sampled), "usd": result.usd}
        if result.failure:
            amounts["failed"] = 1.0
        self.ledger.add(self.names[result.worker], result.cached, **amounts)
        if budget is not None and not result.cached:
            budget.charge(calls=1, tokens=result.sampled, money=result.usd)


def fitted(messages: Sequence[Message], room: int) -> tuple[list[Message], int]:
    """Messages within ``room`` tokens (estimated; 0: any), and the characters left out:
    the oldest text that is not a system message goes first."""
    held = list(messages)
    sizes = [approximate_tokens(one.text) + 4 for one in held]
    over = sum(sizes) - room if room else 0
    dropped = 0
    for at, one in enumerate(messages):
        if over <= 0:
            break
        if one.role == "system":
            continue
        cut = len(one.text) if at < len(held) - 1 and sizes[at] <= over else min(len(one.text), 4 * over)
        held[at] = replace(one, text=one.text[cut:], sent=None)
        dropped += cut
        over -= approximate_tokens(one.text[:cut])
    return [one for one, old in zip(held, messages, strict=True) if one.text or one.text == old.text], dropped


def read_pool(path: Path, seed: int = 0, cached: bool = False) -> ModelPool:
    """The pool of a TOML file. Raises UserError naming file and field."""
    return make_pool(read_pool_config(path), seed, cached)


def read_pool_config(path: Path) -> PoolConfig:
    """The settings in a pool file. Raises UserError naming file and field."""
    config = check(PoolConfig, read_toml(path), str(path))
    if not config.workers:
        raise UserError(f"{path} names no worker: [[workers]] with name and model")
    return config


def make_pool(config: PoolConfig, seed: int = 0, cached: bool = False) -> ModelPool:
    """The pool of its settings. Raises UserError and NeedsError where a model cannot be opened."""
    workers = [PoolWorker(one.name, one.model, one.price, one.context, frozenset(one.tags)) for one in config.workers]
    return ModelPool(workers, seed=seed, seconds=config.seconds, retries=config.retries, rest=config.rest, cached=cached)
