"""What was measured of a tree's potential, drawn over its text: by token inside a reply, or by step along an attempt.

Measurements are ``potential`` annotations {"k", "n"}: at offset t of a reply after its token t, at an observation after that
step. ``cliff`` annotations {"kind", "note"} point at the token or step before their position.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from ramify.render.potential import Estimate, Potential, Spot, potential_svg
from ramify.stats.intervals import wilson
from ramify.trace.db import Run
from ramify.trace.node import Node

_KINDS = ("cliff", "doubtful", "rebound")


def potential_pictures(run: Run, tree: str, most: int = 20) -> list[str]:
    """SVG pictures of one tree, at most ``most``; none where nothing was measured."""
    known: dict[str, dict[int, tuple[float, float, float]]] = {}
    for annotation in run.annotations(tree=tree, name="potential"):
        counts = (annotation.value.get("k"), annotation.value.get("n")) if isinstance(annotation.value, Mapping) else (None, None)
        k, n = (value if type(value) is int else -1 for value in counts)
        if 0 <= k <= n and n:
            known.setdefault(annotation.node, {})[annotation.offset] = (k / n, *wilson(k, n))
    if not known:
        return []
    spots: dict[str, list[Spot]] = {}
    for annotation in run.annotations(tree=tree, name="cliff"):
        value = annotation.value if isinstance(annotation.value, Mapping) else {}
        kind = value.get("kind")
        spots.setdefault(annotation.node, []).append(
            Spot(annotation.offset, kind if kind in _KINDS else "cliff", str(value.get("note", "")))
        )
    nodes = {node.id: node for node in run.nodes(tree)}
    out: list[str] = []
    for shown in (*_replies(nodes, known, spots), *_attempts(nodes, known, spots)):
        if len(out) < most:
            out.append(potential_svg(shown))
    return out


def _replies(
    nodes: Mapping[str, Node], known: Mapping[str, Mapping[int, tuple[float, float, float]]], spots: Mapping[str, list[Spot]]
) -> Iterator[Potential]:
    for name, measured in known.items():
        node = nodes[name]
        if node.role != "assistant" or node.ends is None:
            continue
        ends = [0, *node.ends.tolist()]
        tokens = [node.text[a:b] for a, b in itertools.pairwise(ends)]
        estimates = [Estimate(t, *measured[t]) for t in sorted(measured) if t <= len(tokens)]
        here = [spot for spot in spots.get(name, []) if 1 <= spot.t <= len(tokens)]
        yield Potential(tokens, estimates, here, f"Potential over the reply {name[:12]}")


def _attempts(
    nodes: Mapping[str, Node], known: Mapping[str, Mapping[int, tuple[float, float, float]]], spots: Mapping[str, list[Spot]]
) -> Iterator[Potential]:
    """Paths from the root to the last measured observation of each attempt."""
    seen = [name for name in known if nodes[name].role != "assistant"]
    inner: set[str] = set()
    paths: dict[str, list[Node]] = {}
    for name in seen:
        path, here = [nodes[name]], nodes[name].parent
        while here is not None:
            path.append(nodes[here])
            inner.add(here)
            here = nodes[here].parent
        paths[name] = path[::-1]
    for name, path in paths.items():
        steps = [node for node in path if node.role == "assistant" and node.opens]
        if name in inner or not steps:
            continue
        positions = [node.id for node in path if node.role in ("user", "tool")]
        estimates = [Estimate(t, *known[p][0]) for t, p in enumerate(positions) if 0 in known.get(p, {})]
        here_spots = [Spot(t, spot.kind, spot.note) for t, p in enumerate(positions) for spot in spots.get(p, []) if t]
        texts = [" ".join(node.text.split()) + "  " for node in steps]
        yield Potential(
            texts, [e for e in estimates if e.t <= len(texts)], here_spots, f"Potential after each step, to {name[:12]}"
        )
