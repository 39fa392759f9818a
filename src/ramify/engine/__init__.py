"""The local model engine: many rollouts batched together, shared prefixes computed once, batch-invariant samples."""

from __future__ import annotations

import os

# MKL picks kernels by shape and thread count unless it is pinned before its first call; a row's result must depend on that row
# alone. STRICT: without it some processors still choose by the number of rows.
os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")
# Large pages for large tensors, where the system has them: the weights of a model and its cache are read from end to end.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
