"""Transforms of Python kernels in torch: they edit the syntax tree, and the text of what they leave alone stays as it was.

A transform takes shapes and aliases from what the file says and guesses where it says nothing; the wall catches what it guesses
wrong. Edited are the functions of a torch file, and the methods of a KernelBench problem's model but ``__init__``.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ramify.methods.kernel_search.edits import TORCH_TRANSFORMS, transform
from ramify.methods.kernel_search.task import KernelTask
from ramify.methods.kernel_search.wall import Code

Spot = tuple[ast.AST, str]
"""A node and the text that replaces it."""
Shape = tuple[str, ...] | None
"""Dimensions as the file names them; () of a number, ("?",) of a reduction, None where nothing says."""
BINARY: Mapping[type, str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow"}
UNARY = frozenset(
    """abs ceil clamp clamp_max clamp_min cos erf exp exp2 expm1 floor log log10 log1p log2 neg reciprocal relu round rsqrt
    sigmoid sin sqrt square tanh""".split()
)
REDUCING = frozenset(["amax", "amin", "max", "mean", "min", "norm", "prod", "std", "sum", "var"])
MAKING = frozenset("bmm conv1d conv2d gelu layer_norm linear matmul maximum minimum mm mv silu softmax where".split())
"""Functions whose result is memory of its own."""
COPIES = frozenset(["clone", "contiguous", "detach"])


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _functions(tree: ast.Module, task: KernelTask) -> list[ast.FunctionDef]:
    """What is edited; the one that is called first."""
    if task.problem is None:
        found = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
        return sorted(found, key=lambda one: one.name != task.symbol)
    models = {one.name: one for one in tree.body if isinstance(one, ast.ClassDef) and one.name in ("Model", "ModelNew")}
    model = models.get("ModelNew") or models.get("Model")
    found = [one for one in model.body if isinstance(one, ast.FunctionDef) and one.name != "__init__"] if model else []
    return sorted(found, key=lambda one: one.name != "forward")


def _replaced(source: str, spots: Sequence[Spot]) -> str:
    """The source with nodes replaced, which do not lie in each other."""
    lines = source.encode().splitlines(keepends=True)
    begins = [sum(map(len, lines[:i])) for i in range(len(lines))]
    data = source.encode()
    places = [(begins[n.lineno - 1] + n.col_offset, begins[n.end_lineno - 1] + n.end_col_offset, text) for n, text in spots]  # type: ignore[attr-defined]
    for start, end, text in sorted(places, reverse=True):
        data = data[:start] + text.encode() + data[end:]
    return data.decode()


def _outermost(spots: Sequence[Spot]) -> list[Spot]:
    """Those that lie in no other, so that all can be replaced at once."""
    return [(node, text) for node, text in spots if not any(node is not other and node in ast.walk(other) for other, _ in spots)]


def _made(code: Code, task: KernelTask, spots: Sequence[Spot]) -> Iterator[Code]:
    if spots:
        yield _finished(code, task, _replaced(code.source, spots))


def _finished(code: Code, task: KernelTask, source: str) -> Code:
    """A KernelBench candidate defines ModelNew."""
    if task.problem is not None and not re.search(r"^(?:class ModelNew\b|ModelNew =)", source, re.M):
        source = source.rstrip("\n") + "\n\n\nModelNew = Model\n"
    return replace(code, source=source)


def _decorated(code: Code, task: KernelTask, decorator: str, known: str) -> Iterator[Code]:
    tree = _parsed(code.source)
    for one in _functions(tree, task)[:1] if tree else ():
        if re.search(known, code.source) or "torch" not in _modules(tree):
            return
        line = min([one.lineno, *(each.lineno for each in one.decorator_list)]) - 1
        lines = code.source.splitlines(keepends=True)
        yield _finished(code, task, "".join([*lines[:line], f"{' ' * one.col_offset}@{decorator}\n", *lines[line:]]))


def _modules(tree: ast.Module | None) -> set[str]:
    names = [one for one in ast.walk(tree) if isinstance(one, ast.Import)] if tree else []
    return {alias.asname or alias.name for one in names for alias in one.names}


@transform("compile", TORCH_TRANSFORMS)
def _compile(code: Code, task: KernelTask) -> Iterator[Code]:
    """torch.compile, where its compiler is."""
    if shutil.which("g++"):
        yield from _decorated(code, task, "torch.compile", r"torch\.compile\b")


@transform("inference-mode", TORCH_TRANSFORMS)
def _inference_mode(code: Code, task: KernelTask) -> Iterator[Code]:
    """Nothing is kept for a backward pass."""
    yield from _decorated(code, task, "torch.inference_mode()", r"torch\.(?:inference_mode|no_grad)\b")


# -- copies, layouts, types
# -----------------------------------------------------------------------------------------------------------


def _each(code: Code, task: KernelTask, changed: Callable[[ast.Call], ast.expr | None]) -> Iterator[Code]:
    """All calls that ``changed`` rewrites at once, then each alone."""
    tree = _parsed(code.source)
    if tree is None:
        return

    class Editor(ast.NodeTransformer):
        def __init__(self, only: int) -> None:
            self.only, self.count = only, 0

        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            made = changed(node)
            if made is None:
                return node
            self.count += 1
            return made if self.only in (0, self.count) else node

    count, number = 1, 0
    while number <= (count if count > 1 else 0):
        again = _parsed(code.source)
        assert again is not None
        editor, spots = Editor(number), []
        for function in _functions(again, task):
            for statement in _simple(function.body):
                before = ast.dump(statement)
                after = editor.visit(statement)
                if ast.dump(after) != before:
                    spots.append((after, ast.unparse(after)))
        count, number = editor.count, number + 1
        yield from _made(code, task, _outermost(spots))


def _simple(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that hold no other, those in blocks included; a header of a block stays as it is."""
    for one in body:
        blocks = [block for name in ("body", "orelse", "finalbody") if (block := getattr(one, name, None))]
        if not blocks:
            yield one
        for block in blocks:
            yield from _simple(block)


def _method(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _of_module(node: ast.Call) -> bool:
    """Whether it is torch.f(x) or F.f(x) rather than x.f()."""
    return isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in (
        "torch", "F", "nn.functional", "torch.nn.functional", "torch.special",
    )  # fmt: skip


def _operand(node: ast.Call) -> ast.expr | None:
    """The tensor that a method or a function of torch is called on."""
    if not isinstance(node.func, ast.Attribute):
        return None
    return (node.args[0] if node.args else None) if _of_module(node) else node.func.value


@transform("drop-copies", TORCH_TRANSFORMS)
def _drop_copies(code: Code, task: KernelTask) -> Iterator[Code]:
    """Without clone(), contiguous() and detach()."""
    yield from _each(code, task, lambda node: _operand(node) if _method(node) in COPIES and not node.keywords else None)


@transform("no-doubles", TORCH_TRANSFORMS)
def _no_doubles(code: Code, task: KernelTask) -> Iterator[Code]:
    """Float where the arguments are."""
    if any(one.type == "d" for one in task.arrays):
        return

    def changed(node: ast.Call) -> ast.expr | None:
        wide = _method(node) == "to" and [ast.unparse(one) for one in node.args] in (["torch.float64"], ["torch.double"])
        return _operand(node) if wide or (_method(node) == "double" and not node.args) else None

    yield from _each(code, task, changed)


@transform("contiguous", TORCH_TRANSFORMS)
def _contiguous(code: Code, task: KernelTask) -> Iterator[Code]:
    """A transposed tensor is laid out anew before it is read."""
    yield from _each(
        code,
        task,
        lambda node: _called(node, "contiguous") if _method(node) in ("transpose", "permute", "t", "swapaxes") else None,
    )


@transform("channels-last", TORCH_TRANSFORMS)
def _channels_last(code: Code, task: KernelTask) -> Iterator[Code]:
    """Images of a convolution with their channels together."""
    if "channels_last" in code.source or not re.search(r"\bconv2d\b|\bConv2d\b", code.source):
        return
    tree = _parsed(code.source)
    images = [one.name for one in task.arrays if one.role == 1 and one.count.count(",") == 3]
    for one in _functions(tree, task)[:1] if tree and images else ():
        first = one.body[0]
        space = " " * first.col_offset
        lines = "".join(f"{name} = {name}.contiguous(memory_format=torch.channels_last)\n{space}" for name in images)
        yield from _made(code, task, [(first, lines + (ast.get_source_segment(code.source, first) or ""))])


# -- products
# -------------------------------------------------------------------------------------------------------------------------


@transform("matmul", TORCH_TRANSFORMS)
def _matmul(code: Code, task: KernelTask) -> Iterator[Code]:
    """A matrix product for an einsum, or for a product that is broadcast and then summed."""

    def changed(node: ast.Call) -> ast.expr | None:
        if _method(node) == "einsum" and len(node.args) == 3 and isinstance(node.args[0], ast.Constant):
            pattern = re.fullmatch(r"(\w+),(\w+)->(\w*)", str(node.args[0].value).replace(" ", ""))
            return None if pattern is None else _product(node.args[1], node.args[2], *pattern.groups())
        return _summed_product(node, task)

    yield from _each(code, task, changed)


def _product(left: ast.expr, right: ast.expr, a: str, b: str, out: str) -> ast.expr | None:
    """``left`` with axes ``a`` times ``right`` with axes ``b`` as a matrix product with axes ``out``; None where it is none."""
    if any(len(set(one)) != len(one) for one in (a, b, out)):
        return None
    batch = 0
    while batch < min(len(a), len(b), len(out)) and a[batch] == b[batch] == out[batch]:
        batch += 1
    shared, a, b, out = a[:batch], a[batch:], b[batch:], out[batch:]
    inner = [one for one in a if one in b and one not in out]
    rows, columns = [one for one in a if one not in inner], [one for one in b if one not in inner]
    if len(inner) != 1 or len(rows) > 1 or len(columns) > 1 or set(rows) & set(columns) or set(out) != {*rows, *columns}:
        return None
    if shared and (not rows or not columns):
        return None
    k = inner[0]
    if len(a) == 2:
        left = left if a[1] == k else _turned(left)
    if len(b) == 2:
        right = right if b[0] == k else _turned(right)
    made: ast.expr = ast.BinOp(left, ast.MatMult(), right)
    if len(out) == 2 and out[0] != rows[0]:
        made = _turned(made)
    return made


def _turned(node: ast.expr) -> ast.expr:
    return ast.Attribute(node, "mT", ast.Load())


def _summed_product(node: ast.Call, task: KernelTask) -> ast.expr | None:
    """``(x[:, :, None] * y[None]).sum(1)`` and the like, and ``(x * w).sum(-1)`` of a matrix and a vector."""
    inside = _operand(node)
    dim = next(
        (one.value for one in node.keywords if one.arg == "dim"),
        node.args[-1] if node.args and (len(node.args) == (2 if _of_module(node) else 1)) else None,
    )
    if _method(node) != "sum" or not isinstance(inside, ast.BinOp) or not isinstance(inside.op, ast.Mult) or dim is None:
        return None
    if len(node.keywords) > (1 if any(one.arg == "dim" for one in node.keywords) else 0):
        return None
    try:
        axis = int(ast.literal_eval(dim))
    except (ValueError, TypeError):
        return None
    ranks = {one.name: one.count.count(",") + 1 for one in task.arrays}
    sides = [_axes(side, ranks) for side in (inside.left, inside.right)]
    if None in sides:
        return None
    (left, a), (right, b) = (one for one in sides if one is not None)
    rank = max(len(a), len(b))
    letters = "abcdefgh"[:rank]
    if not 1 <= rank <= 8 or not -rank <= axis < rank:
        return None
    named = ["".join(letter for letter, here in zip(letters[rank - len(axes) :], axes, strict=True) if here) for axes in (a, b)]
    return _product(left, right, named[0], named[1], letters.replace(letters[axis], ""))


def _axes(node: ast.expr, ranks: Mapping[str, int]) -> tuple[ast.expr, list[bool]] | None:
    """A tensor without its added axes, and for each axis whether it is its own."""
    if isinstance(node, ast.Name) and node.id in ranks:
        return node, [True] * ranks[node.id]
    if (
        isinstance(node, ast.Call)
        and _method(node) == "unsqueeze"
        and len(node.args) == 1
        and isinstance(node.func, ast.Attribute)
    ):
        below = _axes(node.func.value, ranks)
        try:
            at = int(ast.literal_eval(node.args[0]))
        except (ValueError, TypeError):
            return None
        if below is None or not -len(below[1]) - 1 <= at <= len(below[1]):
            return None
        at += len(below[1]) + 1 if at < 0 else 0
        return below[0], [*below[1][:at], False, *below[1][at:]]
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in ranks:
        items = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        axes = []
        for one in items:
            if isinstance(one, ast.Slice) and not (one.lower or one.upper or one.step):
                axes.append(True)
            elif isinstance(one, ast.Constant) and one.value is None:
                axes.append(False)
            else:
                return None
        rank = ranks[node.value.id]
        return (node.value, axes + [True] * (rank - sum(axes))) if sum(axes) <= rank else None
    return None


# -- chains of elementwise operators
# -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Value:
    """An expression: rewritten, whether it is a tensor, in memory of its own that nothing else needs, of which shape."""

    node: ast.expr
    tensor: bool = False
    fresh: bool = False
    shape: Shape = ()


class _Chains:
    """Rewrites one function: what an operator has just made is changed in place by the next."""

    def __init__(self, function: ast.FunctionDef, task: KernelTask, first: bool, out: bool) -> None:
        self.function, self.out = function, out
        shapes = {one.name: tuple(part.strip() for part in one.count.split(",") if part.strip()) for one in task.arrays}
        self.shapes: dict[str, Shape] = {one.arg: shapes[one.arg] for one in function.args.args if first and one.arg in shapes}
        self.outs = {one.name for one in task.arrays if one.role & 2} & set(self.shapes)
        self.fresh: set[str] = set()
        self.rest: Sequence[ast.stmt] = ()
        self.uses: dict[str, int] = {}
        self.sets = ""
        self.closed = any(isinstance(one, ast.FunctionDef | ast.Lambda) and one is not function for one in ast.walk(function))

    def spots(self) -> list[Spot]:
        found: list[Spot] = []
        for i, statement in enumerate(self.function.body):
            self.rest = self.function.body[i + 1 :]
            if next(_simple([statement]), None) is not statement:  # a block: what it does to names is not followed
                names = {one.id for one in ast.walk(statement) if isinstance(one, ast.Name)}
                self.fresh -= names
                for name in {
                    one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
                }:
                    self.shapes.pop(name, None)
                continue
            found += self._statement(statement)
        return found

    def _statement(self, statement: ast.stmt) -> list[Spot]:
        target, value = None, None
        if isinstance(statement, ast.Return | ast.Expr):
            value = statement.value
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            value = statement.value
        into = self._into(statement, target)
        if into and self.out:
            value = into[1]
        self.uses, self.sets = {}, target.id if isinstance(target, ast.Name) else ""
        for one in ast.walk(statement):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
                self.uses[one.id] = self.uses.get(one.id, 0) + 1
        if value is None:
            self.fresh -= {one.id for one in ast.walk(statement) if isinstance(one, ast.Name)}
            return []
        before = ast.dump(value)
        made = self.value(value)
        if isinstance(target, ast.Name):
            self.fresh -= {target.id, value.id} if isinstance(value, ast.Name) else {target.id}
            if made.tensor:
                self.shapes[target.id] = made.shape
                if made.fresh and not isinstance(value, ast.Name):
                    self.fresh.add(target.id)
            else:
                self.shapes.pop(target.id, None)
        if into and self.out:
            stored = _stored(made, into[0], self.shapes.get(into[0]))
            return [] if stored is None else [(statement, ast.unparse(stored))]
        return [(value, ast.unparse(made.node))] if ast.dump(made.node) != before else []

    def _into(self, statement: ast.stmt, target: ast.expr | None) -> tuple[str, ast.expr] | None:
        """The output that a statement fills whole, and with what: ``y.copy_(e)``, ``y[:] = e``, ``y[...] = e``."""
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and _method(statement.value) == "copy_":
            name, value = _operand(statement.value), statement.value.args[0] if statement.value.args else None
        elif (
            isinstance(statement, ast.Assign) and isinstance(target, ast.Subscript) and ast.unparse(target.slice) in (":", "...")
        ):
            name, value = target.value, statement.value
        else:
            return None
        if not isinstance(name, ast.Name) or name.id not in self.outs or value is None:
            return None
        used = {one.id for one in ast.walk(value) if isinstance(one, ast.Name)}
        return None if name.id in used else (name.id, value)

    def _dead(self, name: str) -> bool:
        """Nothing reads the name after this statement before it is set anew."""
        for statement in self.rest if name != self.sets else ():
            if isinstance(statement, ast.AugAssign) and ast.unparse(statement.target) == name:
                return False
            loads = [one for one in ast.walk(statement) if isinstance(one, ast.Name) and one.id == name]
            if any(isinstance(one.ctx, ast.Load) for one in loads):
                return False
            if loads and isinstance(statement, ast.Assign):
                return True
        return not self.closed

    def value(self, node: ast.expr) -> Value:
        """An expression with its chains in place."""
        if isinstance(node, ast.Constant):
            return Value(node)
        if isinstance(node, ast.Name):
            if node.id not in self.shapes:
                return Value(node)
            own = node.id in self.fresh and self.uses.get(node.id) == 1 and self._dead(node.id)
            return Value(node, True, own, self.shapes[node.id])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.value(node.operand)
            if inner.tensor and inner.fresh:
                return replace(inner, node=_called(inner.node, "neg_"))
            return replace(inner, node=ast.UnaryOp(node.op, inner.node), fresh=inner.tensor)
        if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
            return self._binary(node, BINARY[type(node.op)])
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return Value(ast.BinOp(self.value(node.left).node, node.op, self.value(node.right).node), True, True, None)
        if isinstance(node, ast.Call) and (name := _method(node)) and not node.keywords:
            operand = _operand(node)
            if operand is not None and name in UNARY | REDUCING | MAKING and (_of_module(node) or name not in MAKING):
                inner = self.value(operand)
                if inner.tensor:
                    return self._called(node, name, inner)
        return self._unknown(node)

    def _unknown(self, node: ast.expr) -> Value:
        """Anything else: names in it may have been given another name by it."""
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        self.fresh -= names
        tensor = bool(names & set(self.shapes)) and isinstance(node, ast.Call | ast.Subscript | ast.Attribute)
        return Value(node, tensor, False, None if tensor else ())

    def _called(self, node: ast.Call, name: str, inner: Value) -> Value:
        rest = node.args[1:] if _of_module(node) else node.args
        if name in UNARY and inner.fresh:
            return replace(inner, node=ast.Call(ast.Attribute(inner.node, f"{name}_", ast.Load()), list(rest), []))
        others = [self.value(one).node for one in rest] if name in MAKING else list(rest)
        made = (
            ast.Call(node.func, [inner.node, *others], [])
            if _of_module(node)
            else ast.Call(ast.Attribute(inner.node, name, ast.Load()), others, [])
        )
        if name in UNARY:
            return Value(made, True, True, inner.shape)
        return Value(made, True, name in MAKING, ("?",) if name in REDUCING else None)

    def _binary(self, node: ast.BinOp, name: str) -> Value:
        left = self.value(node.left)
        if isinstance(node.left, ast.Name) and left.tensor and not left.fresh and self._reduced(node.left.id, node.right):
            left = replace(left, fresh=True)
        right = self.value(node.right)
        shape = _wider(left.shape, right.shape)
        tensor = left.tensor or right.tensor
        if left.fresh and left.shape == shape:
            return Value(_called(left.node, f"{name}_", right.node), True, True, shape)
        if right.fresh and right.shape == shape and name != "pow":
            turned = {"sub": "neg_", "div": "reciprocal_"}.get(name)
            base = _called(right.node, turned) if turned else right.node
            return Value(_called(base, {"sub": "add_", "div": "mul_"}.get(name, f"{name}_"), left.node), True, True, shape)
        return Value(ast.BinOp(left.node, node.op, right.node), tensor, tensor, shape)

    def _reduced(self, name: str, other: ast.expr) -> bool:
        """``e / e.sum(1)``: every other use of a name is in a reduction that is done before it is changed."""
        if name not in self.fresh or not self._dead(name) or not (isinstance(other, ast.Call) and _method(other) in REDUCING):
            return False
        inside = sum(isinstance(one, ast.Name) and one.id == name for one in ast.walk(other))
        return inside + 1 == self.uses.get(name)


def _called(node: ast.expr, name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(node, name, ast.Load()), list(arguments), [])


def _wider(a: Shape, b: Shape) -> Shape:
    """The shape of an elementwise result."""
    if a == b or b == ():
        return a
    if a == ():
        return b
    if a is None or b is None:
        return None
    return a if len(a) > len(b) else b if len(b) > len(a) else None


def _stored(made: Value, name: str, shape: Shape) -> ast.expr | None:
    """A chain that fills ``name`` from its first operator on; None where that operator cannot."""
    if not made.fresh or made.shape != shape:
        return None
    calls, base = [], made.node
    while isinstance(base, ast.Call) and _method(base).endswith("_") and isinstance(base.func, ast.Attribute):
        calls.append((base.func.attr, base.args))
        base = base.func.value
    out = ast.keyword("out", ast.Name(name, ast.Load()))
    torch = lambda function: ast.Attribute(ast.Name("torch", ast.Load()), function, ast.Load())  # noqa: E731
    if isinstance(base, ast.BinOp) and type(base.op) in BINARY:
        sides = [base.left, base.right]
        if isinstance(sides[0], ast.Constant):
            if not isinstance(base.op, ast.Add | ast.Mult):
                return None
            sides.reverse()
        found: ast.expr = ast.Call(torch(BINARY[type(base.op)]), sides, [out])
    elif isinstance(base, ast.Call) and _method(base) in UNARY - {"relu"}:
        rest = base.args[1:] if _of_module(base) else base.args
        operand = _operand(base)
        assert operand is not None
        found = ast.Call(torch(_method(base)), [operand, *rest], [out])
    else:
        return None
    for attribute, arguments in reversed(calls):
        found = ast.Call(ast.Attribute(found, attribute, ast.Load()), arguments, [])
    return found


def _chained(code: Code, task: KernelTask, out: bool) -> Iterator[Code]:
    tree = _parsed(code.source)
    spots: list[Spot] = []
    for i, one in enumerate(_functions(tree, task) if tree else ()):
        spots += _Chains(one, task, i == 0, out).spots()
    yield from _made(code, task, spots)


@transform("in-place", TORCH_TRANSFORMS)
def _in_place(code: Code, task: KernelTask) -> Iterator[Code]:
    """An elementwise chain in one memory."""
    yield from _chained(code, task, False)


@transform("out", TORCH_TRANSFORMS)
def _out(code: Code, task: KernelTask) -> Iterator[Code]:
    """An elementwise chain in the memory of the output that it is copied to."""
    yield from _chained(code, task, True)


@transform("lean", TORCH_TRANSFORMS)
def _lean(code: Code, task: KernelTask) -> Iterator[Code]:
    """Without copies, without doubles, in one memory: these pay together more than each alone."""
    made, steps = code, 0
    for name in ("drop-copies", "no-doubles", "in-place"):
        step = next(TORCH_TRANSFORMS[name](made, task), made)
        steps, made = steps + (step.key != made.key), step
    if steps > 1:
        yield made
