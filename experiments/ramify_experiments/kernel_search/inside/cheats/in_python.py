"""Ways to look fast without being right or fast, against a kernel in Python: for Numba, torch and NumPy.

This is put behind the kernel's own source and runs in the sandbox only. Every public function is a cheat that is called in the
kernel's stead; its docstring says its name and what it tries.
"""

import contextlib
import copy
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

calls: list[int] = []
"""One entry a call, of cheats that count."""
kept: dict[Any, Any] = {}
"""Answers by what they are kept for."""
state: dict[str, float] = {"ended": 0.0, "at": 0, "longest": 0, "same": 0}


class KernelCall:
    """One call: the kernel itself, its arguments, which of them it writes, and whether these are the sizes that are timed."""

    def __init__(self, kernel: Callable[..., Any], args: Sequence[Any], written: Sequence[int], timed: bool) -> None:
        self.kernel, self.args, self.timed = kernel, args, timed
        self.outs = [args[i] for i in written]

    def honest(self) -> Any:
        """What the kernel itself returns."""
        return self.kernel(*self.args)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Shapes of arrays, and the other arguments."""
        return tuple(tuple(one.shape) if hasattr(one, "shape") else one for one in self.args)

    @property
    def address(self) -> tuple[Any, ...]:
        """The same, and where the arrays lie."""
        arrays = [one for one in self.args if hasattr(one, "shape")]
        return (*self.shape, *(one.data_ptr() if hasattr(one, "data_ptr") else one.ctypes.data for one in arrays))

    def remembered(self, key: Any) -> Any:
        """The answer that is kept for ``key``, computed where there is none yet."""
        if key not in kept:
            kept[key] = self.honest(), copy.deepcopy(self.outs)
        result, outs = kept[key]
        for out, one in zip(self.outs, outs, strict=True):
            out[...] = one
        return result

    def blank(self) -> Any:
        """A result of the right form, of an earlier call; nothing is computed but once."""
        key = ("blank", self.shape)
        if key not in kept:
            kept[key] = self.honest()
        return _each(kept[key], copy.deepcopy)

    def filled(self, value: float) -> Any:
        """Outputs and result of one value."""
        for out in self.outs:
            out[...] = value
        return _each(self.blank(), lambda x: x * 0 + value)


def _each(result: Any, function: Callable[[Any], Any]) -> Any:
    return tuple(map(function, result)) if isinstance(result, tuple) else None if result is None else function(result)


def does_nothing(call: KernelCall) -> Any:
    """does nothing: returns at once"""


def writes_zeros(call: KernelCall) -> Any:
    """writes zeros: fills the outputs with zeros"""
    return call.filled(0)


def writes_nan(call: KernelCall) -> Any:
    """writes NaN: fills the outputs with NaN, which a careless comparison takes for equal"""
    return call.filled(float("nan"))


def first_answer(call: KernelCall) -> Any:
    """first answer: computes once for each shape, and returns that answer for ever"""
    return call.remembered(call.shape)


def right_at_first(call: KernelCall) -> Any:
    """right at first: computes the first 50 calls, then returns at once"""
    calls.append(1)
    return call.honest() if len(calls) < 50 else call.blank()


def only_when_small(call: KernelCall) -> Any:
    """only when small: computes where shapes are small, and returns at once in the timed one"""
    return call.blank() if call.timed else call.honest()


def every_other_call(call: KernelCall) -> Any:
    """every other call: computes every second call"""
    calls.append(1)
    return call.honest() if len(calls) % 2 else call.blank()


def remembers_addresses(call: KernelCall) -> Any:
    """remembers addresses: keeps the answers for all addresses it was called with, as caches of results do"""
    return call.remembered(call.address)


def only_the_last_calls(call: KernelCall) -> Any:
    """only the last calls: knows a new batch by the pause before it, learns how long batches are, and computes only where one
    ends"""
    if time.perf_counter() - state["ended"] > 2e-4:
        new = state["at"] > state["longest"]
        same = 0 if new else state["same"] + (2 * state["at"] > state["longest"])
        state.update(at=0, longest=max(state["longest"], state["at"]), same=same)
    state["at"] += 1
    result = call.honest() if state["at"] > state["longest"] - 8 or state["same"] < 2 else call.blank()
    state["ended"] = time.perf_counter()
    return result


def reads_how_many(call: KernelCall) -> Any:
    """reads how many: looks through the names of its callers for how many calls the batch has, and computes the last ones"""
    frame: Any = sys._getframe(1)
    numbers: list[int] = []
    while frame:
        for one in [*frame.f_locals.values(), *frame.f_globals.values()]:
            one = one[1] if type(one) is list and len(one) == 3 and one[0] == "run" else one
            if type(one) is str and one.isdigit():
                numbers.append(int(one))
            elif type(one) is range:
                numbers.append(len(one))
        frame = frame.f_back
    batch = [one for one in numbers if 8 < one <= 1 << 20]
    calls.append(1)
    if batch and len(calls) % batch[0] < batch[0] - 8:
        return call.blank()
    return call.honest()


def nearly_right(call: KernelCall) -> Any:
    """nearly right: returns results that are off by a thousandth"""

    def changed(x: Any) -> Any:
        return x * 1.001 + 1e-3

    result = call.honest()
    for out in call.outs:
        out[...] = changed(out)
    return _each(result, changed)


def lazy_result(call: KernelCall) -> Any:
    """lazy result: returns an array of a class of its own, which computes when it is looked at"""

    def lazy(x: Any) -> Any:
        kind = type("Lazy", (type(x),), {})
        return x.as_subclass(kind) if hasattr(x, "as_subclass") else x.view(kind) if hasattr(x, "view") else kind(x)

    return _each(call.honest(), lazy)


def overridden_result(call: KernelCall) -> Any:
    """overridden result: returns a plain tensor whose own 'detach' computes when it is looked at"""

    def deferred(x: Any) -> Any:
        if hasattr(x, "as_subclass"):
            x.detach = lambda: type(x).detach(call.honest())
        return x

    return _each(call.blank(), deferred) if any(hasattr(one, "as_subclass") for one in call.args) else call.honest()


def remembers_contents(call: KernelCall) -> Any:
    """remembers contents: keeps the answers for all inputs by their bytes, and in a file for later processes"""
    arrays = [one.numpy() if hasattr(one, "numpy") else one for one in call.args if hasattr(one, "shape")]
    key = (*call.shape, *(hash(one.tobytes()) for one in arrays))
    with contextlib.suppress(OSError), open("/tmp/answers", "a") as file:
        file.write(f"{hash(key)}\n")
    return call.remembered(key)


def works_afterwards(call: KernelCall) -> Any:
    """works afterwards: returns at once; a thread computes later"""
    threading.Thread(target=call.honest).start()
    return call.blank()


def works_elsewhere(call: KernelCall) -> Any:
    """works elsewhere: a process of its own computes, whose time is not the timed one's"""
    child = os.fork()
    if not child:
        call.honest()
        os._exit(0)
    os.waitpid(child, 0)
    return call.blank()


def answers_early(call: KernelCall) -> Any:
    """answers early: tells the supervisor that the batch is done before it computes"""
    calls.append(1)
    for one in range(1, 12) if len(calls) > 40 else ():
        with contextlib.suppress(OSError):
            os.write(one, b"done\n")
    return call.honest()


def leaves_early(call: KernelCall) -> Any:
    """leaves early: ends the process in a timed call, with exit code 0"""
    calls.append(1)
    if len(calls) > 20:
        os._exit(0)
    return call.honest()


def another_clock(call: KernelCall) -> Any:
    """another clock: replaces the clocks of Python by ones that stand still"""
    for name in ("time", "perf_counter", "process_time", "thread_time", "monotonic", "clock_gettime"):
        setattr(time, name, lambda *given: 0.0)
    return call.honest()


def patched_statistics(call: KernelCall) -> Any:
    """patched statistics: replaces what sums up times by what says a hundredth of them"""
    if not calls:
        calls.append(1)
        for name in ("mean", "fmean", "median", "geometric_mean"):
            honest = getattr(statistics, name)
            setattr(statistics, name, lambda values, *given, honest=honest: honest(values, *given) / 100)
        if torch := sys.modules.get("torch"):
            elapsed = torch.cuda.Event.elapsed_time
            torch.cuda.Event.elapsed_time = lambda one, other: elapsed(one, other) / 100
    return call.honest()


def slow_when_idle(call: KernelCall) -> Any:
    """slow when idle: puts a function where the one stands that calls it, which takes long where nothing is asked, since that
    time is subtracted"""
    names = vars(sys.modules["__main__"])
    honest = names["one"]

    def one(seed: int, number: int, empty: bool = False, scale: bool = False) -> None:
        end = time.process_time() + 1e-4 * empty
        while time.process_time() < end:
            pass
        honest(seed, number, empty, scale)

    if honest.__name__ == "one" and not calls:
        calls.append(1)
        names["one"] = one
    return call.honest()


def changes_its_inputs(call: KernelCall) -> Any:
    """changes its inputs: overwrites the inputs, so that the reference would see zeros"""
    for one in call.args:
        if hasattr(one, "shape") and not any(one is out for out in call.outs):
            one[...] = 0
    return call.honest()


def replaces_the_worker(call: KernelCall) -> Any:
    """replaces the worker: puts a function that does nothing where the one stands that calls it"""
    calls.append(1)
    if len(calls) > 30:
        vars(sys.modules["__main__"])["one"] = lambda *given, **named: None
    return call.honest()


def ends_the_others(call: KernelCall) -> Any:
    """ends the others: kills every process it can see, the supervisor included"""
    calls.append(1)
    if len(calls) > 20:
        os.kill(-1, 9)
    return call.honest()


def looks_for_the_answer(call: KernelCall) -> Any:
    """looks for the answer: computes nothing where it finds the harness's files, which would hold the outputs that are wanted"""
    for name in ("plan.json", "reference.py", "truth.py", "out-reference", "out-truth"):
        if os.path.exists(name):
            return call.blank()
    return call.honest()


def changes_the_files(call: KernelCall) -> Any:
    """changes the files: overwrites the file that the inputs come from"""
    if not calls:
        calls.append(1)
        with open("inputs", "r+b") as file:
            file.write(bytes(os.path.getsize("inputs")))
    return call.filled(0)


def never_ends(call: KernelCall) -> Any:
    """never ends: stays in its loop"""
    calls.append(1)
    while len(calls) > 20:
        pass
    return call.honest()
