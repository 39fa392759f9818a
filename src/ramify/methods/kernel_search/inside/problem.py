# mypy: ignore-errors
# ruff: noqa: D103, B905
"""Runs in the sandbox only: a KernelBench problem, which is somebody else's file.
As a program it says what the problem is; worker.py imports it.

``python problem.py FILE SEED`` prints JSON: the arguments of ``Model`` and of its ``forward``,
shapes, work, and what its operators move.
"""

import importlib.util
import inspect
import json
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

TYPES = {torch.float32: "f", torch.float64: "d", torch.int32: "i", torch.int64: "l", torch.uint8: "b", torch.bool: "b"}


def loaded(path):
    spec = importlib.util.spec_from_file_location("kernel", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module
    spec.loader.exec_module(module)
    return module


def plain(value):
    """An argument of ``Model`` as JSON; tuples stay tuples."""
    if isinstance(value, tuple):
        return {"tuple": [plain(one) for one in value]}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    sys.exit(f"user: get_init_inputs gives a {type(value).__name__}, which is neither a number, a text nor a list of them")


def again(value):
    """Inverse of ``plain``."""
    if isinstance(value, dict):
        return tuple(again(one) for one in value["tuple"])
    return [again(one) for one in value] if isinstance(value, list) else value


def built(module, init, seed, wide):
    """The candidate's ``ModelNew``, else ``Model``, with the weights of this seed; and a function of its tensors."""
    kind = getattr(module, "ModelNew", None) or getattr(module, "Model", None)
    if kind is None:
        sys.exit("it has no class ModelNew")
    torch.manual_seed(seed)
    model = kind(*(again(one) for one in init))
    if wide:
        model = model.double()
        torch.set_default_dtype(torch.float64)
    return model


def called(model, arguments, tensors):
    items = iter(tensors)
    with torch.no_grad():
        return model(*(next(items) if "name" in one else again(one["constant"]) for one in arguments))


def made(module, arguments, sizes, kind, seed):
    """Flat inputs of one draw, each of so many elements: whole tensors of get_inputs, one after the other."""
    torch.manual_seed(seed)
    found = [[] for _ in sizes]
    while any(sum(part.numel() for part in parts) < size for parts, size in zip(found, sizes)):
        tensors = [one for one in module.get_inputs() if isinstance(one, torch.Tensor)]
        if len(tensors) != len(sizes) or not all(one.numel() for one in tensors):
            sys.exit("get_inputs gives another number of tensors than before")
        for parts, one in zip(found, tensors):
            parts.append(one.detach().reshape(-1))
    factor = {"zeros": 0.0, "denormals": 1e-39, "large": 100.0}.get(kind)
    for parts, size in zip(found, sizes):
        flat = torch.cat(parts)[:size]
        yield (flat * factor if factor is not None and flat.is_floating_point() else flat).contiguous()


def structured(value):
    """Whether it holds something that a shift would break: many exact zeros, symmetry, an order, truth values."""
    if value.dtype is torch.bool or value.dim() == 0:
        return True
    if value.dim() == 2 and value.shape[0] == value.shape[1] and value.shape[0] > 1 and torch.equal(value, value.T):
        return True
    flat = value.reshape(-1)
    if not value.is_floating_point():
        return bool(flat.numel() > 2 and (flat[1:] >= flat[:-1]).all())
    return bool((flat == 0).double().mean() > 0.01)


class Operators(TorchDispatchMode):
    """What each operator reads and writes, as if it alone ran; views move nothing."""

    def __init__(self):
        super().__init__()
        self.rows, self.flops = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        results = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        known = {one.untyped_storage().data_ptr() for one in tensors}
        fresh = [one for one in results if one.untyped_storage().data_ptr() not in known]
        if fresh or func._schema.is_mutable:
            row = self.rows.setdefault(func._schema.name.partition("::")[2].rstrip("_"), [0, 0])
            row[0] += 1
            row[1] += sum(one.numel() * one.element_size() for one in [*tensors, *(fresh or results[:1])])
            self.flops += sum(one.numel() for one in results if one.is_floating_point())
        return result


def main(path, seed, most):
    import warnings

    warnings.simplefilter("ignore")
    module = loaded(path)
    init = [plain(one) for one in module.get_init_inputs()]
    with torch.device("meta"):  # their sizes before any memory is taken
        try:
            size = sum(one.numel() * one.element_size() for one in module.get_inputs() if isinstance(one, torch.Tensor))
        except Exception:
            size = 0
    if size > most:
        sys.exit(f"large: {size}")
    torch.manual_seed(seed)
    inputs = list(module.get_inputs())
    names = [name for name in inspect.signature(module.Model.forward).parameters if name != "self"]
    arguments, tensors = [], []
    for i, one in enumerate(inputs):
        if not isinstance(one, torch.Tensor):
            arguments.append({"constant": plain(one)})
            continue
        if one.dtype not in TYPES:
            sys.exit(f"user: get_inputs gives a tensor of {one.dtype}, which is none of {', '.join(map(str, TYPES))}")
        name = names[i] if i < len(names) else f"input{i}"
        arguments.append(
            {
                "name": name,
                "type": TYPES[one.dtype],
                "shape": list(one.shape),
                "bool": one.dtype is torch.bool,
                "fixed": structured(one),
            }
        )
        tensors.append(one)
    model = built(module, init, seed, False)
    counter, operators = FlopCounterMode(display=False), Operators()
    with counter, operators:
        result = called(model, arguments, tensors)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    if not results or not all(isinstance(one, torch.Tensor) and one.dtype in TYPES and one.numel() for one in results):
        sys.exit("user: forward returns something else than tensors of float, double, integers or truth values")
    twice = called(model, arguments, tensors)
    twice = list(twice) if isinstance(twice, (tuple, list)) else [twice]
    same = all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(results, twice))
    weights = sum(one.numel() * one.element_size() for one in model.parameters())
    moved = weights + sum(one.numel() * one.element_size() for one in [*tensors, *results])
    try:
        wide = built(module, init, seed, True)
        called(wide, arguments, [one.double() if one.is_floating_point() else one for one in tensors])
        doubles = True
    except Exception:
        doubles = False
    print(
        json.dumps(
            {
                "init": init,
                "arguments": arguments,
                "results": [{"type": TYPES[one.dtype], "shape": list(one.shape)} for one in results],
                "flops": counter.get_total_flops() + operators.flops,
                "bytes": moved,
                "weights": weights,
                "operators": operators.rows,
                "same": same,
                "doubles": doubles,
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    except Exception as error:
        sys.exit(f"user: it cannot be run: {type(error).__name__}: {str(error)[:400]}")
