"""pass@k: the chance that at least one of k attempts is right, from c right ones among n."""

from __future__ import annotations

import math


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, section 2.1).

    Raises ValueError where ``c`` of ``n`` is not a count, or ``k`` is not between 1 and ``n``.
    """
    if not 0 <= c <= n:
        raise ValueError(f"{c} of {n} is not a count")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} attempts, and there are {n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)
