"""What is said where a package is missing that only an extra brings: one sentence with the command that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from ramify.base.errors import NeedsError

#: Extra -> (what needs them, the packages it brings, by the names they are imported under).
#: Extras of one integration say so where they are imported.
EXTRAS = {
    "local": (
        "models, tokenizers and tensors in this process",
        ("torch", "transformers", "tokenizers", "safetensors", "llguidance"),
    ),
    "real": ("GGUF files, such as the model smollm2,", ("gguf", "accelerate")),
    "parquet": ("Parquet files", ("pyarrow",)),
    "graphs": ("networkx and GraphML graphs", ("networkx",)),
}


def needed(error: BaseException) -> NeedsError | None:
    """The sentence for an import that failed; None of another error, and where no extra of :data:`EXTRAS` has the package."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    for extra, (what, packages) in EXTRAS.items():
        if name in packages:
            return NeedsError(f"{what} need the package '{name}', which is not installed: pip install \"ramify[{extra}]\"")
    return None


def missing(extra: str) -> NeedsError | None:
    """The sentence for the first package of an extra that is not installed; None where all are. Imports none of them."""
    absent = (ModuleNotFoundError(name=name) for name in EXTRAS[extra][1] if find_spec(name) is None)
    return next(map(needed, absent), None)


@contextmanager
def told() -> Iterator[None]:
    """Raises :func:`needed` instead of what an import inside fails with."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (told := needed(error)) is None:
            raise
        raise told from error
