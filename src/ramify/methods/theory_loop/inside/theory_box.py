"""Inside the sandbox: theories and metrics run here, each request in a process of its own. Never imported by the host,
which sends this file's text.

A request forks: what a theory does to numpy, to its namespace or to its random numbers ends with it. Arrays travel as base64 of
float32 or bytes. Answers are ``{"value": ...}`` or ``{"problem": kind, "why": sentence}``.
"""

from __future__ import annotations

import base64
import builtins
import importlib
import json
import os
import random
import resource
import select
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

ALLOWED: tuple[str, ...] = ()
"""What theories and metrics may import; the host sets it."""
_TOLERANCE = 1e-6
_MOST = 1 << 19


class _ProblemError(Exception):
    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind, self.why = kind, why


def request(kind: str, payload: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Answer one request in a child that may use ``seconds`` of processor time."""
    if kind == "metric":
        importlib.import_module("pandas")  # once, for all children
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _child(kind, payload, seconds, writing)
    os.close(writing)
    parts, ends, size = [], time.monotonic() + 4 * seconds + 1, 0
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, ends - time.monotonic()))
        part = os.read(reading, 1 << 16) if ready else None
        if not part or size > _MOST:
            if part != b"":
                os.kill(child, signal.SIGKILL)
            break
        parts.append(part)
        size += len(part)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        late = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        return {
            "problem": "time" if late else "died",
            "why": f"more than {seconds:g} s" if late else f"ended by signal {os.WTERMSIG(status)}",
        }
    try:
        answer = json.loads(b"".join(parts))
        return answer if isinstance(answer, dict) else {"problem": "died", "why": "it gave no answer"}
    except ValueError:
        return {"problem": "died", "why": f"its process ended without an answer, exit code {os.waitstatus_to_exitcode(status)}"}


def _child(kind: str, payload: dict[str, Any], seconds: float, out: int) -> None:
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        os.dup2(out, 3)
        os.closerange(4, 4096)  # the host's channel among them: a theory cannot answer for its parent
        whole = max(1, int(np.ceil(seconds)))
        resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 1))
        answer = {"value": _KINDS[kind](payload)}
    except _ProblemError as problem:
        answer = {"problem": problem.kind, "why": problem.why}
    except MemoryError:
        answer = {"problem": "memory", "why": "it asked for more memory than it may have"}
    except BaseException as problem:
        answer = {"problem": "raised", "why": f"{type(problem).__name__}: {str(problem)[:300]}"}
    try:
        data = json.dumps(answer, allow_nan=False).encode("utf-8", "replace")
        while data:
            data = data[os.write(3, data) :]
    finally:
        os._exit(0)


def _import(name: str, *args: Any, **kwargs: Any) -> Any:
    if name.split(".")[0] not in ALLOWED:
        raise _ProblemError("code", f"it imports '{name}'")
    return builtins.__import__(name, *args, **kwargs)


def _load(code: str, seed: int) -> dict[str, Any]:
    """The namespace of a source, its random numbers seeded."""
    import math

    scope: dict[str, Any] = {
        "__builtins__": {**vars(builtins), "__import__": _import},
        "__name__": "theory",
        "np": np,
        "numpy": np,
        "math": math,
    }
    _seed(seed)
    exec(compile(code, "<theory>", "exec"), scope)
    return scope


def _seed(seed: int) -> None:
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _packed(array: Any, kind: Any = np.float32) -> str:
    return base64.b64encode(np.ascontiguousarray(array, kind).tobytes()).decode()


def _array(text: str, shape: Any) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(shape).astype(np.int64)


def _two(found: Any, where: str) -> np.ndarray:
    """Probabilities of both options. Raises _ProblemError."""
    if type(found) is list and len(found) == 2 and all(isinstance(p, float) and 0 <= p <= 1 for p in found):
        total = found[0] + found[1]
        if abs(total - 1) <= _TOLERANCE:  # as below, without its arrays: half the time of a history-reading theory
            return np.array([found[0] / total, found[1] / total])
    try:
        probabilities = np.asarray(found, float)
    except (TypeError, ValueError):
        raise _ProblemError("probabilities", f"{where}: predict returned {type(found).__name__!s}, not two numbers") from None
    if probabilities.shape != (2,):
        raise _ProblemError("probabilities", f"{where}: predict returned shape {probabilities.shape}, not two numbers")
    if not np.isfinite(probabilities).all() or (probabilities < -_TOLERANCE).any():
        raise _ProblemError("probabilities", f"{where}: predict returned {probabilities.tolist()}, which are no probabilities")
    if abs(probabilities.sum() - 1) > _TOLERANCE:
        raise _ProblemError("probabilities", f"{where}: probabilities sum to {probabilities.sum():.6g}, not 1")
    return np.asarray(np.clip(probabilities, 0, None) / np.clip(probabilities, 0, None).sum())


class _Subject:
    """One simulated subject: its parameters, and ``predict`` called on copies that it may change."""

    def __init__(self, scope: Mapping[str, Any], design: Mapping[str, Any], parameters: Mapping[str, Any], index: int) -> None:
        self._predict, self._design, self._index = scope["predict"], design, index
        self._parameters = {name: values[index] for name, values in parameters.items()}

    def predict(self, pair: int, history: Mapping[str, list[Any]], where: str = "") -> np.ndarray:
        """(2,) probabilities. Raises _ProblemError."""
        design = self._design
        state = {
            "option_a_ratings": list(design["trial_a_ratings"][pair]),
            "option_b_ratings": list(design["trial_b_ratings"][pair]),
            "validities": list(design["validities"]),
            "rating_max": design["rating_max"],
        }
        own = {name: list(value) if isinstance(value, list) else value for name, value in self._parameters.items()}
        where = where or f"subject {self._index}, pair {pair}"
        try:
            found = self._predict(own, state, {name: list(values) for name, values in history.items()})
        except (_ProblemError, MemoryError):
            raise
        except Exception as error:
            raise _ProblemError("raised", f"{where}: predict raised {type(error).__name__}: {str(error)[:200]}") from None
        return _two(found, where)


_EMPTY: dict[str, list[Any]] = {"option_a_ratings": [], "option_b_ratings": [], "response": []}


def _tables(payload: dict[str, Any]) -> list[str]:
    """For each request of a theory that reads no history: (S, P) probabilities of B."""
    scope = _load(payload["code"], payload["seed"])
    tables = []
    for i, one in enumerate(payload["requests"]):
        design, parameters, n = one["design"], one["parameters"], one["n"]
        pairs = len(design["trial_a_ratings"])
        if "predict_all" in scope:
            table = _all(scope, design, parameters, n, pairs)
            if i in (0, len(payload["requests"]) - 1):
                _compare(scope, design, parameters, table)
        else:
            subjects = [_Subject(scope, design, parameters, s) for s in range(n)]
            table = np.array([[subject.predict(p, _EMPTY)[1] for p in range(pairs)] for subject in subjects]).reshape(n, pairs)
            again = subjects[0].predict(0, _EMPTY)[1]
            if again != table[0, 0]:
                raise _ProblemError(
                    "not repeatable", f"the same pair had P(B) {table[0, 0]:.6g}, and {again:.6g} when it was asked for again"
                )
        tables.append(_packed(table))
    return tables


def _all(scope: Mapping[str, Any], design: Mapping[str, Any], parameters: Mapping[str, Any], n: int, pairs: int) -> np.ndarray:
    arrays = {name: np.asarray(values) for name, values in parameters.items()}
    a, b = (np.array(design[name], float) for name in ("trial_a_ratings", "trial_b_ratings"))
    try:
        table = np.asarray(scope["predict_all"](arrays, a, b, np.array(design["validities"])), float)
    except MemoryError:
        raise
    except Exception as error:
        raise _ProblemError("raised", f"predict_all raised {type(error).__name__}: {str(error)[:200]}") from None
    if table.shape == (pairs,) or table.shape == (1, pairs):
        table = np.broadcast_to(table, (n, pairs))
    if table.shape != (n, pairs) or not np.isfinite(table).all() or (table < -_TOLERANCE).any() or (table > 1 + _TOLERANCE).any():
        raise _ProblemError(
            "probabilities",
            f"predict_all returned shape {table.shape}, or numbers outside 0 to 1, for {n} subjects and {pairs} pairs",
        )
    return np.asarray(np.clip(table, 0, 1))


def _compare(scope: Mapping[str, Any], design: Mapping[str, Any], parameters: Mapping[str, Any], table: np.ndarray) -> None:
    """``predict_all`` must say what ``predict`` says: looked at for the first and the last subject."""
    for s in {0, len(table) - 1}:
        subject = _Subject(scope, design, parameters, s)
        for p in range(table.shape[1]):
            own = subject.predict(p, _EMPTY)[1]
            if abs(own - table[s, p]) > 1e-5:
                raise _ProblemError(
                    "batch differs", f"subject {s}, pair {p}: predict says P(B) = {own:.6g}, predict_all {table[s, p]:.6g}"
                )


def _play(payload: dict[str, Any]) -> str:
    """(S, T) choices of subjects whose theory reads history, or has a policy of its own."""
    design, parameters, noise = payload["design"], payload["parameters"], payload["noise"]
    order = _array(payload["order"], payload["shape"])
    scope = _load(payload["code"], payload["seed"])
    policy: Callable[[Any], Any] | None = None if payload["samples"] else scope["policy"]
    chosen = np.zeros(order.shape, np.uint8)
    for s in range(len(order)):
        subject, rng = _Subject(scope, design, parameters, s), np.random.default_rng([payload["seed"], s])
        _seed(payload["seed"] + s)
        history: dict[str, list[Any]] = {name: [] for name in _EMPTY}
        for t, pair in enumerate(order[s].tolist()):
            uniform, slip, random_choice = rng.random(3)
            where = f"subject {s}, trial {t}"
            probabilities = subject.predict(pair, history, where)
            if s == 0 and t in (0, 1, len(order[0]) - 1) and (subject.predict(pair, history, where) != probabilities).any():
                raise _ProblemError("not repeatable", f"{where}: predict said something else when it was asked again")
            choice = int(uniform < probabilities[1]) if policy is None else _chosen(policy, probabilities, where)
            choice = int(random_choice < 0.5) if slip < noise else choice
            chosen[s, t] = choice
            history["option_a_ratings"].append(list(design["trial_a_ratings"][pair]))
            history["option_b_ratings"].append(list(design["trial_b_ratings"][pair]))
            history["response"].append(choice)
    return _packed(chosen, np.uint8)


def _chosen(policy: Callable[[Any], Any], probabilities: np.ndarray, where: str) -> int:
    try:
        choice = policy(probabilities.copy())
        whole = int(choice)
    except Exception as error:
        raise _ProblemError("choice", f"{where}: policy raised {type(error).__name__}: {str(error)[:200]}") from None
    if whole not in (0, 1) or whole != choice:
        raise _ProblemError("choice", f"{where}: policy returned {str(choice)[:40]}, which is neither 0 nor 1")
    return whole


def _forced(payload: dict[str, Any]) -> str:
    """(S, T) mean over parameter draws of P(B), given what each subject really chose before."""
    design, parameters = payload["design"], payload["parameters"]
    order, response = (_array(payload[name], payload["shape"]) for name in ("order", "response"))
    scope = _load(payload["code"], payload["seed"])
    draws = [_Subject(scope, design, parameters, d) for d in range(payload["draws"])]
    found = np.zeros(order.shape)
    for s in range(len(order)):
        history: dict[str, list[Any]] = {name: [] for name in _EMPTY}
        for t, (pair, choice) in enumerate(zip(order[s].tolist(), response[s].tolist(), strict=True)):
            found[s, t] = np.mean([one.predict(pair, history, f"subject {s}, trial {t}")[1] for one in draws])
            history["option_a_ratings"].append(list(design["trial_a_ratings"][pair]))
            history["option_b_ratings"].append(list(design["trial_b_ratings"][pair]))
            history["response"].append(choice)
    return _packed(found)


def _metric(payload: dict[str, Any]) -> dict[str, Any]:
    """A metric on all data and on each subject's rows: value, variance or None, and what is to be said of it."""
    pandas: Any = importlib.import_module("pandas")
    design, order, response = (
        payload["design"],
        _array(payload["order"], payload["shape"]),
        _array(payload["response"], payload["shape"]),
    )
    names = payload["subjects"] or [str(s) for s in range(len(order))]

    def frame(subjects: list[int]) -> Any:
        rows = [
            (names[s], list(design["trial_a_ratings"][p]), list(design["trial_b_ratings"][p]), r)
            for s in subjects for p, r in zip(order[s].tolist(), response[s].tolist(), strict=True)
        ]  # fmt: skip
        return pandas.DataFrame(rows, columns=["subject_id", "option_a_ratings", "option_b_ratings", "response"])

    def value(data: Any) -> float:
        found = float(scope["metric"](data))
        if not np.isfinite(found):
            raise _ProblemError("metric value", f"the metric is {found}, which is no finite number")
        return found

    scope, everybody = _load(payload["code"], payload["seed"]), list(range(len(order)))
    given, kept = frame(everybody), frame(everybody)
    try:
        pooled = value(given)
    except (_ProblemError, MemoryError):
        raise
    except Exception as error:
        raise _ProblemError("raised", f"metric raised {type(error).__name__}: {str(error)[:200]}") from None
    notes = [] if given.equals(kept) else [["metric changes data", "it changed the table that it was given"]]
    try:
        each = [value(frame([s])) for s in everybody]
    except Exception as error:
        why = error.why if isinstance(error, _ProblemError) else f"{type(error).__name__}: {str(error)[:200]}"
        return {"value": pooled, "variance": None, "notes": [*notes, ["metric per subject", f"on one subject alone: {why}"]]}
    return {"value": pooled, "variance": float(np.var(each)), "notes": notes}


_KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {"tables": _tables, "play": _play, "forced": _forced, "metric": _metric}
