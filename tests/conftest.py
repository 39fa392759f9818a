"""Set before any test imports torch: thread pools that fight over two cores cost several times the work."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
