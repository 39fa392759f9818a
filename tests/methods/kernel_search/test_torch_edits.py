"""Transforms of torch kernels: what each makes of a file, and that the wall finds it right."""

from __future__ import annotations

import asyncio

import pytest

from ramify.methods.kernel_search.proposers import TransformProposer
from ramify.methods.kernel_search.task import KernelTask, from_c, from_python
from ramify.methods.kernel_search.transforms import transforms_for, variants
from ramify.methods.kernel_search.wall import Code, Wall
from tests.methods.kernel_search.kernels import SUM

HEAD = (
    "import torch\n# ramify: n = 24, 7; m = 16, 5; k = 8, 3; x[n, m]; w[m, k]; b[k]; {out}\n\n\ndef f(n, m, k, x, w, b{more}):\n"
)
RESULT = HEAD.format(out="result[n, k]", more="")


def task_of(body: str, head: str = RESULT) -> KernelTask:
    return from_python(head + body, path="f.py")


def lines(name: str, body: str, head: str = RESULT) -> list[list[str]]:
    """The lines that each variant has and the original has not."""
    task = task_of(body, head)
    before = task.source.splitlines()
    return [[line for line in one.source.splitlines() if line not in before] for one in variants(name, Code(task.source), task)]


def test_a_broadcast_product_and_an_einsum_become_matrix_products() -> None:
    for body, wanted in (
        ("    return (x[:, :, None] * w[None]).sum(1)  # slow\n", "    return x @ w  # slow"),
        ("    return torch.sum(x.unsqueeze(-1) * w.unsqueeze(0), dim=-2)\n", "    return x @ w"),
        ("    return (x[:, None, :] * w.T[None]).sum(-1)\n", ""),
        ("    return torch.einsum('nm,mk->nk', x, w)\n", "    return x @ w"),
        ("    return torch.einsum('nm,km->nk', x, w.T)\n", "    return x @ w.T.mT"),
        ("    return torch.einsum('nm,mk->kn', x, w)\n", "    return (x @ w).mT"),
        ("    return torch.einsum('nm,nm->nm', x, x)\n", ""),
        ("    return torch.einsum('nn->n', x)\n", ""),
    ):
        assert lines("matmul", body) == ([[wanted]] if wanted else []), body


def test_what_an_operator_has_made_is_changed_in_place_by_the_next() -> None:
    body = (
        "    z = x @ w\n    z = z * 2 + b\n    e = torch.exp(z - z.amax(1, keepdim=True))\n    return 1 - e / e.sum(1, "
        "keepdim=True)\n"
    )
    assert lines("in-place", body) == [
        [
            "    z = z.mul_(2).add_(b)",
            "    e = z.sub_(z.amax(1, keepdim=True)).exp_()",
            "    return e.div_(e.sum(1, keepdim=True)).neg_().add_(1)",
        ]
    ]
    # what another name may hold, what is read again, an argument and a smaller operand stay as they are
    for body in (
        "    a = x @ w\n    c = a\n    return torch.maximum(a + 1, c)\n",
        "    return (x + 1) @ w\n",
        "    v = x.mean(1, keepdim=True) + 1\n    return v * (x @ w) if n else b\n",
        "    a = x @ w\n    v = a[0]\n    return a + v\n",
    ):
        assert lines("in-place", body) == [], body


def test_a_chain_fills_its_output() -> None:
    head = HEAD.format(out="out y[n, m]", more=", y")
    body = "    y.copy_(torch.exp(x * 2 + 1))\n"
    assert lines("out", body, head) == [["    torch.mul(x, 2, out=y).add_(1).exp_()"]]
    assert lines("out", "    y[:] = 3 * x\n", head) == [["    torch.mul(x, 3, out=y)"]]
    assert lines("out", "    y[:] = y * x\n", head) == []
    assert lines("out", "    y[:1] = x * 2\n", head) == []


def test_copies_types_layouts_and_decorators() -> None:
    body = "    a = x.clone().contiguous()\n    return (a @ w.detach()).double().to(torch.float64).float()\n"
    assert lines("drop-copies", body)[0] == ["    a = x", "    return (a @ w).double().to(torch.float64).float()"]
    assert len(lines("drop-copies", body)) == 4
    assert lines("no-doubles", body)[0] == ["    return (a @ w.detach()).float()"]
    lean = "    z = x.clone() * 2.0 + x\n    return (z.double() * 0.5 + 1.0).float() @ w\n"
    assert lines("lean", lean) == [["    z = (x * 2.0).add_(x)", "    return (z * 0.5 + 1.0).float() @ w"]]
    assert lines("lean", "    return x.clone() @ w\n") == []  # one step only: that is drop-copies
    assert lines("contiguous", "    return x @ w.t().t()\n")[0] == ["    return x @ w.t().contiguous().t().contiguous()"]
    assert lines("inference-mode", body) == [["@torch.inference_mode()"]]
    decorated = RESULT.replace("def f", "@torch.no_grad()\ndef f")
    assert lines("inference-mode", body, decorated) == []
    image = "import torch\n# ramify: n = 4, 1; x[n, 3, 8, 8]; w[2, 3, 3, 3]; result[n, 2, 6, 6]\n\n\ndef f(n, x, w):\n"
    body = "    return torch.conv2d(x, w)\n"
    assert lines("channels-last", body, image)[0][0] == "    x = x.contiguous(memory_format=torch.channels_last)"


def test_a_healthy_file_and_what_is_not_understood_are_left_alone() -> None:
    for body in ("    return x @ w\n", "    for i in range(3):\n        pass\n    return [one for one in (x @ w,)][0]\n"):
        for name in set(transforms_for("torch")) - {"compile", "inference-mode"}:
            assert lines(name, body) == [], (name, body)
    task = task_of("    return x @ w\n")
    for name in transforms_for("torch"):
        assert variants(name, Code("def ("), task) == []


def test_each_kind_has_its_own_transforms() -> None:
    assert not set(transforms_for("c")) & set(transforms_for("torch"))
    assert TransformProposer(from_c(SUM)).names == list(transforms_for("c"))
    assert transforms_for("numba") == {}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_wall_finds_every_variant_right() -> None:
    body = (
        "    z = (x[:, :, None] * w[None]).sum(1).clone()\n    z = z * 2 + b\n    e = torch.exp(z - z.amax(1, keepdim=True))\n  "
        "  return e / e.sum(1, keepdim=True)\n"
    )
    task = task_of(body)
    wall = Wall(task)
    made = [one for name in set(transforms_for("torch")) - {"compile"} for one in variants(name, wall.original, task)]
    assert len(made) >= 4
    for one in made:
        trial = asyncio.run(wall.trial(one, time=False))
        assert trial.ok, (trial.refused, one.source)
