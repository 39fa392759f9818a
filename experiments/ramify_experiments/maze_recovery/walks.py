"""Many walkers on mazes at once: policies are tables over what a walker sees, walks are arrays.

Axis legend: N walkers, E moves in all, S states (a position and how it was entered), C contexts that a policy distinguishes,
V moves: one for each token, of which the maze refuses most (the walker stays, and a step has passed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramify.env.builtin.maze import COMPASS, route
from ramify.env.protocol import Task
from ramify.methods.maze_recovery.loops import erase_loops


@dataclass(frozen=True)
class Graph:
    """Where moves lead, and what a policy sees."""

    follow: np.ndarray
    """(S, V) state after each move; the state itself where the move is refused."""
    place: np.ndarray
    """(S,) the position."""
    context: np.ndarray
    """(S,) the context that the policy sees."""
    prompt: np.ndarray
    """(C, 2) tokens of each context, for a network."""
    uniform: np.ndarray
    """(C, V) policy of the base model: every edge alike."""
    state_at: dict[tuple[int, int], int]
    """(position before, position) -> state; -1 before the first position."""


@dataclass(frozen=True)
class Walks:
    """N walks of E moves in all, in order of time: who moved, when, from which state, which move.
    ``length``, ``done`` are (N,)."""

    walker: np.ndarray
    time: np.ndarray
    state: np.ndarray
    move: np.ndarray
    length: np.ndarray
    done: np.ndarray

    def counts(self, graph: Graph, weight: np.ndarray | None = None) -> np.ndarray:
        """(C, V): how often each context was answered by each move, or the sum of ``weight`` (E,) there."""
        cell = graph.context[self.state] * graph.follow.shape[1] + self.move
        return np.bincount(cell, weight, graph.uniform.size).reshape(graph.uniform.shape).astype(np.float64)

    def places(self, graph: Graph) -> list[list[int]]:
        """Positions of the walks that reached their goal, first to last; refused moves are left out."""
        moved = graph.follow[self.state, self.move]
        on = np.flatnonzero((moved != self.state) & self.done[self.walker])
        if not len(on):
            return []
        on = on[np.argsort(self.walker[on], kind="stable")]
        begins = np.flatnonzero(np.diff(self.walker[on], prepend=-1))
        starts, ends = graph.place[self.state[on[begins]]], np.split(graph.place[moved[on]], begins[1:])
        return [[int(first), *rest.tolist()] for first, rest in zip(starts, ends, strict=True)]


def star_graph(W: int, K: int, L: int) -> Graph:
    """The maze of the theory; positions 0 source, 1 fork, then l_0 r_0 l_1 ...
    leaf branch by branch; parallel edges are one move.

    A move names the position to go to. The context is the state: the last two positions. Nobody goes back to the source.
    """
    links: dict[int, dict[int, int]] = {0: {1: 1}, 1: {}}
    for w in range(W):
        before = 1
        for at in range(2 * K + 1):
            here = 2 + w * (2 * K + 1) + at
            edges = L if at % 2 else 1
            links[before][here] = edges
            links[here] = {before: edges}
            before = here
    pairs = [(-1, 0), *((u, v) for u, ends in links.items() for v in ends)]
    state_at = {pair: i for i, pair in enumerate(pairs)}
    follow = np.repeat(np.arange(len(pairs))[:, None], len(links), axis=1)
    uniform = np.zeros(follow.shape)
    for i, (_, v) in enumerate(pairs):
        for end, edges in links[v].items():
            follow[i, end] = state_at[v, end]
            uniform[i, end] = edges / sum(links[v].values())
    prompt = np.array([(max(u, 0), v) for u, v in pairs])
    return Graph(follow, np.array([v for _, v in pairs]), np.arange(len(pairs)), prompt, uniform, state_at)


def family_rows(W: int, K: int, graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """State, desired move and other move of every row of the theory, each (W, 4, K), families in the order a b c d."""
    first = 2 + (2 * K + 1) * np.arange(W)[:, None] + 2 * np.arange(K)
    left, right, after = first, first + 1, first + 2
    before = np.where(np.arange(K) > 0, first - 1, 1)
    came, here = np.stack([left, after, before, right], 1), np.stack([right, right, left, left], 1)
    desired, other = np.stack([after, left, right, before], 1), np.stack([left, after, before, right], 1)
    pairs = zip(came.ravel().tolist(), here.ravel().tolist(), strict=True)
    return np.array([graph.state_at[pair] for pair in pairs], dtype=np.int64).reshape(W, 4, K), desired, other


@dataclass(frozen=True)
class GridTasks:
    """P random grids as one graph: start states, goal positions and lengths of shortest paths (P,), and those paths as
    positions."""

    graph: Graph
    start: np.ndarray
    goal: np.ndarray
    shortest: np.ndarray
    golden: list[list[int]]

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> GridTasks:
        """A position is a cell's number over all mazes; the context is the last move (or none) and which ways are open."""
        ways = list(COMPASS)
        names = [(i, name) for i, task in enumerate(tasks) for name in task.data["exits"]]
        index = {name: at for at, name in enumerate(names)}
        to = np.full((len(names), 4), -1, dtype=np.int64)
        golden = []
        for i, task in enumerate(tasks):
            for name, exits in task.data["exits"].items():
                for way, there in exits.items():
                    to[index[i, name], ways.index(way)] = index[i, there]
            golden.append([index[i, task.data["start"]]])
            for way in route(task.data):
                golden[-1].append(int(to[golden[-1][-1], ways.index(way)]))
        start = np.array([path[0] * 5 + 4 for path in golden])
        goal = np.array([path[-1] for path in golden])
        return cls(_grid_graph(to), start, goal, np.array([len(path) - 1 for path in golden]), golden)


def _grid_graph(to: np.ndarray) -> Graph:
    """``to`` (places, 4): the position each way leads to, -1 where it is closed. State = 5 position + last move (4: none).

    Tokens: 0 to 3 the moves, 4 to 8 the last move, 9 to 24 which ways are open."""
    place, last = np.divmod(np.arange(len(to) * 5), 5)
    follow = np.repeat(np.arange(len(place))[:, None], 25, axis=1)
    follow[:, :4] = np.where(to[place] < 0, follow[:, :4], to[place] * 5 + np.arange(4))
    ways = (to >= 0) @ (1 << np.arange(4))
    context = np.indices((5, 16)).reshape(2, -1).T
    uniform = np.zeros((80, 25))
    uniform[:, :4] = (context[:, 1:] >> np.arange(4)) & 1
    uniform /= np.maximum(1, uniform.sum(axis=1, keepdims=True))
    state_at = {(-1, p): 5 * p + 4 for p in range(len(to))}
    state_at |= {(p, int(to[p, k])): int(to[p, k]) * 5 + k for p, k in zip(*np.nonzero(to >= 0), strict=True)}
    return Graph(follow, place, last * 16 + ways[place], context + np.array([4, 9]), uniform, state_at)


def golden_paths(W: int, K: int) -> list[list[int]]:
    """The shortest path to every leaf, as positions of :func:`star_graph`."""
    size = 2 * K + 1
    return [[0, 1, *range(2 + w * size, 2 + (w + 1) * size)] for w in range(W)]


def walk(graph: Graph, policy: np.ndarray, start: np.ndarray, goal: np.ndarray, cap: int, rng: np.random.Generator) -> Walks:
    """Walks under ``policy`` (C, V) from states ``start`` (N,) to positions ``goal`` (N,), of at most ``cap`` steps."""
    V = policy.shape[1]
    # one sorted array of c + cumulative probability: a binary search samples for all walkers at once
    steps = np.arange(len(policy))[:, None] + np.minimum(policy.cumsum(axis=1), 1.0)
    steps[:, -1] = np.arange(1, len(policy) + 1)
    edges = steps.ravel()
    length, done = np.full(len(start), cap), np.zeros(len(start), dtype=bool)
    live, here = np.arange(len(start)), start
    walker, state, move = [], [], []
    for t in range(cap):
        context = graph.context[here]
        chosen = np.searchsorted(edges, context + rng.random(len(live)), side="right") - context * V
        walker.append(live)
        state.append(here)
        move.append(chosen)
        here = graph.follow[here, chosen]
        end = graph.place[here] == goal[live]
        if end.any():
            length[live[end]], done[live[end]] = t + 1, True
            live, here = live[~end], here[~end]
            if not len(live):
                break
    time = np.repeat(np.arange(len(walker)), [len(w) for w in walker])
    return Walks(np.concatenate(walker), time, np.concatenate(state), np.concatenate(move), length, done)


def star_walks(W: int, K: int, graph: Graph, policy: np.ndarray, n: int, cap: int, rng: np.random.Generator) -> Walks:
    """``n`` walks from the source to uniformly sampled leaves."""
    goal = 1 + (rng.integers(W, size=n) + 1) * (2 * K + 1)
    return walk(graph, policy, np.full(n, graph.state_at[-1, 0]), goal, cap, rng)


def path_counts(graph: Graph, paths: Sequence[Sequence[int]]) -> np.ndarray:
    """(C, V) of paths given as positions."""
    here, there = [], []
    for path in paths:
        states = [graph.state_at[pair] for pair in zip([-1, *path], path, strict=False)]
        here += states[:-1]
        there += states[1:]
    move = (graph.follow[here] == np.array(there)[:, None]).argmax(axis=1)
    cell = graph.context[here] * graph.follow.shape[1] + move
    return np.bincount(cell, minlength=graph.uniform.size).reshape(graph.uniform.shape).astype(np.float64)


def without_loops(paths: Sequence[Sequence[int]]) -> list[list[int]]:
    """The paths with every cycle cut out."""
    return [[path[at] for at in erase_loops(path)] for path in paths]
