# mypy: ignore-errors
"""Runs in the sandbox only: one call of a torch kernel, and as JSON what each of its operators reads and writes, and its flops.

``request.json`` says what the function takes; the inputs of one call lie in ``inputs``, one after the other.
"""

import json
import sys

import numpy as np
import problem
import torch
from torch.utils.flop_counter import FlopCounterMode

torch.set_num_threads(1)
with open("request.json", encoding="utf-8") as file:
    request = json.load(file)
module, given = problem.loaded("candidate.py"), request["problem"]
if given:
    tensors = [one for one in problem.loaded("reference.py").get_inputs() if isinstance(one, torch.Tensor)]
    model = problem.built(module, given["init"], given["seed"], False)
else:
    data, at, tensors = np.fromfile("inputs", np.uint8), 0, []
    for one in request["arguments"]:
        if "value" in one:
            tensors.append(one["value"])
            continue
        dtype = np.dtype(one["dtype"])
        size = dtype.itemsize * int(np.prod(one["shape"]))
        made = np.zeros(one["shape"], dtype)
        if one["given"]:
            made, at = data[at : at + size].view(dtype).reshape(one["shape"]).copy(), at + size
        tensors.append(torch.from_numpy(made))
    model = getattr(module, request["symbol"], None)
    if model is None:
        sys.exit(f"it has no function {request['symbol']}")
counter, operators = FlopCounterMode(display=False), problem.Operators()
with counter, operators:
    problem.called(model, given["arguments"], tensors) if given else model(*tensors)
print(json.dumps({"operators": operators.rows, "flops": counter.get_total_flops() + operators.flops}))
