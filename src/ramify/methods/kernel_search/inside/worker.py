# mypy: ignore-errors
# ruff: noqa: D103, B905
"""Runs in the sandbox only: loads one build of a Python kernel (Numba, torch, NumPy,
Triton by its interpreter) and calls it as it is told.

The protocol is that of worker.c. ``about.json`` of this worker says what the function is called and what it takes.
"""

import ctypes
import importlib.util
import json
import mmap
import os
import statistics
import sys
import time

import numpy as np

build, source, target, in_bytes, out_bytes = sys.argv[1:6]
with open("about.json", encoding="utf-8") as file:
    about = json.load(file)
WIDE, TORCH, PROBLEM = build.endswith("truth.py"), about["kind"] in ("torch", "triton", "kernelbench"), about["problem"]
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
if TORCH:
    import warnings

    import torch

    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    torch.set_num_threads(about["threads"])


def mapped(path, size, write):
    with open(path, "r+b" if write else "rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ), np.uint8)


inputs, outputs = mapped(source, int(in_bytes), False), mapped(target, int(out_bytes), True)
answers = os.dup(1)
os.dup2(2, 1)  # what the kernel prints is not an answer


def answer(text):
    os.write(answers, (text + "\n").encode())


def clocks():
    """What reads time or sums up times, by name: in a process of its own each is that of the library, and stays so."""
    read = "time perf_counter process_time thread_time monotonic clock_gettime"
    owners = [(time, f"{read} {read.replace(' ', '_ns ')}_ns"), (os, "times"), (statistics, "mean fmean median geometric_mean")]
    if TORCH:
        owners += [(torch.cuda.Event, "elapsed_time record synchronize"), (torch.cuda, "synchronize")]
    return {f"{owner.__name__}.{name}": getattr(owner, name) for owner, names in owners for name in names.split()}


def refuse_patches():
    """End the process where the kernel replaced one of them."""
    now = clocks()
    if changed := [name for name in now if now[name] is not CLOCKS[name]]:
        sys.exit(f"it replaced {changed[0]}, by which time is read")


CLOCKS = clocks()
spec = importlib.util.spec_from_file_location("kernel", build)
module = importlib.util.module_from_spec(spec)
sys.modules["kernel"] = module
spec.loader.exec_module(module)
if PROBLEM:
    import problem

    model = problem.built(module, PROBLEM["init"], PROBLEM["seed"], WIDE and PROBLEM["doubles"])
    tensors = [one for one in PROBLEM["arguments"] if "name" in one]

    def function(*given):
        """The model on tensors; where it does not run in double precision its own results are widened."""
        if WIDE and not PROBLEM["doubles"]:
            given = [x.float() if one["type"] == "f" else x for x, one in zip(given, tensors)]
        given = [(x.reshape(one["shape"]).bool() if one["bool"] else x.reshape(one["shape"])) for x, one in zip(given, tensors)]
        found = problem.called(model, PROBLEM["arguments"], given)
        found = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        return tuple(x.double() if WIDE and x.is_floating_point() else x for x in found) if WIDE else found

else:
    function = getattr(module, about["symbol"], None)
    if function is None:
        sys.exit(f"it has no function {about['symbol']}")
refuse_patches()
answer("done")
arrays, scalars, key, windows, slots = [], [], "", 1, 1


def kernel_array(array):
    return torch.from_numpy(array) if TORCH else array


def store(result, into):
    """A returned result, by its exact type: a lazy or duck-typed one is not a result."""
    allowed = (np.ndarray, float, int, np.float32, np.float64, np.int32, np.int64)
    if TORCH:
        allowed = (*allowed, torch.Tensor)
    if type(result) not in allowed:
        sys.exit(f"it returned a {type(result).__name__}, which is neither a number nor an array")
    if TORCH and type(result) is torch.Tensor:
        if changed := [name for name in vars(result) if hasattr(torch.Tensor, name)]:
            sys.exit(f"it returned a tensor with a '{changed[0]}' of its own, which may compute later")
        result = result.view(torch.uint8) if result.dtype is torch.bool else result
        if result.layout is not torch.strided or result.device.type != "cpu":
            sys.exit("it returned a tensor that is not dense memory of this processor")
        result = result.detach().numpy()
    result = np.asarray(result)
    if result.size != into.size:
        sys.exit(f"it returned {result.size} values, not {into.size}")
    if result.dtype.kind != into.dtype.kind or (
        not WIDE and isinstance(result, np.ndarray) and result.ndim and result.dtype != into.dtype
    ):
        sys.exit(f"it returned {result.dtype}, not {into.dtype}")
    into[...] = result.reshape(-1)


def one(seed, number, empty=False, scale=False):
    window = (seed + number * (seed >> 9 | 1)) % windows * 64
    slot, given, back = number % slots, [], []
    stored = []
    for own, (at_in, at_out, count, stride, windowed) in zip(about["arrays"], arrays):
        dtype, shape = np.dtype(own["dtype"]), own["shapes"].get(key)
        made = out = None
        if own["role"] & 1:
            begin = at_in + (window if windowed else 0)
            made = inputs[begin : begin + count * dtype.itemsize].view(dtype)
            if WIDE and dtype.kind == "f":
                made = np.abs(made).astype(np.float64) if scale else made.astype(np.float64)
        if own["role"] & 2:
            wide = np.dtype(np.float64) if WIDE else dtype
            begin = at_out + slot * stride
            out = outputs[begin : begin + count * wide.itemsize].view(wide)
            if own["role"] & 1:
                out[...] = made
            if WIDE and dtype.kind != "f":
                stored.append((out, made := (np.zeros(count, dtype) if made is None else made.copy())))
            else:
                made = out
        if own["returned"]:
            back.append(made)
            continue
        given.append(kernel_array(made.reshape(shape) if shape else made))
    values = [abs(x) if scale and t == "f" else x for x, t in zip(scalars, about["scalar_types"])]
    if empty:
        return
    items = iter(given), iter(values)
    result = function(*(next(items[0]) if kind == "array" else next(items[1]) for kind in about["order"]))
    results = result if len(back) > 1 or PROBLEM else (result,)
    if type(results) is not tuple or len(results) < len(back):
        sys.exit(f"it returned {len(results) if type(results) is tuple else 1} results, not {len(back)}")
    for each, into in zip(results, back):
        store(each, into)
    for out, made in stored:
        out[...] = made


for line in sys.stdin:
    words = line.split()
    if words[0] == "layout":
        windows, slots = int(words[1]), int(words[2])
        numbers = list(map(int, words[3 : 3 + 5 * len(about["arrays"])]))
        arrays = [numbers[i : i + 5] for i in range(0, len(numbers), 5)]
        given = words[3 + len(numbers) :]
        key = " ".join(given)
        scalars = [float(x) if t == "f" else int(float(x)) for x, t in zip(given, about["scalar_types"])]
    elif words[0] == "make":
        sizes = [
            at[2] + (64 * (windows - 1) // np.dtype(own["dtype"]).itemsize if at[4] else 0)
            for own, at in zip(about["arrays"], arrays)
            if own["role"] & 1
        ]
        with open(source, "r+b") as file:
            places = [at[0] for own, at in zip(about["arrays"], arrays) if own["role"] & 1]
            for at, flat in zip(places, problem.made(module, PROBLEM["arguments"], sizes, words[2], int(words[1]))):
                file.seek(at)
                file.write(flat.numpy().tobytes())
    elif words[0] in ("truth", "scale"):
        one(int(words[2]), int(words[1]), scale=words[0] == "scale")
    else:
        del line  # how many calls a batch has is not for the kernel, which can read every name of this file, to know
        for number in range(int(words.pop(1))):
            one(int(words[1]), number, empty=words[0] == "empty")
    refuse_patches()
    answer("done")
