# mypy: ignore-errors
"""Runs in the sandbox only: compiles one Triton kernel for a GPU that need not be here,
and prints what nvdisasm and cuobjdump say of it.

``request.json``: file, function, arch, signature (types as Triton writes them: ``*fp32:16`` is a pointer divisible by 16, a
number a constant), warps, stages.
"""

import importlib.util
import json
import os
import subprocess
import sys
import warnings

warnings.simplefilter("ignore")
with open("request.json", encoding="utf-8") as file:
    request = json.load(file)
try:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
except ImportError as error:
    sys.exit(f"needs: Triton cannot be imported: {error}")
spec = importlib.util.spec_from_file_location("kernel_file", "kernel_file.py")
module = importlib.util.module_from_spec(spec)
sys.modules["kernel_file"] = module
spec.loader.exec_module(module)
kernel = getattr(module, request["function"], None)
names = getattr(kernel, "arg_names", None)
if names is None:
    sys.exit(f"user: '{request['function']}' is not a function with @triton.jit")
words = [word.strip() for word in request["signature"].split(",")]
if len(words) != len(names):
    sys.exit(
        f"user: the signature has {len(words)} types, and {request['function']} takes {len(names)} arguments: {', '.join(names)}"
    )
signature, constants, attributes = {}, {}, {}
for i, (name, word) in enumerate(zip(names, words, strict=True)):
    kind, _, hint = word.partition(":")
    try:
        constants[(i,)] = int(kind) if kind.lstrip("-").isdigit() else {"True": True, "False": False, "None": None}[kind]
        signature[name] = "constexpr"
    except KeyError:
        signature[name] = kind
    if hint:
        attributes[(i,)] = [["tt.divisibility", int(hint)]]
options = {name: request[name] for name in ("num_warps", "num_stages") if request.get(name)}
try:
    made = triton.compile(
        ASTSource(kernel, signature, constants, attributes), target=GPUTarget("cuda", int(request["arch"]), 32), options=options
    )
except Exception as error:
    sys.exit(f"user: it does not compile: {type(error).__name__}: {str(error)[:600]}")
with open("kernel.cubin", "wb") as file:
    file.write(made.asm["cubin"])
tools = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
read = {}
for name, command in (
    ("sass", ["nvdisasm", "-c", "kernel.cubin"]),
    ("usage", ["cuobjdump", "--dump-resource-usage", "kernel.cubin"]),
):
    done = subprocess.run([os.path.join(tools, command[0]), *command[1:]], capture_output=True, text=True)
    read[name] = done.stdout
print(
    json.dumps(
        {
            **read,
            "ptx": made.asm["ptx"],
            "shared": made.metadata.shared,
            "warps": made.metadata.num_warps,
            "triton": triton.__version__,
        }
    )
)
