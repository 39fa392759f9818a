"""Reproduction on two CPU cores: exact results, sampled tabular training, a small network,
and mazes on random grids (section 7(a)).

Axis legend as in walks.py: N walkers, E moves in all, C contexts that a policy distinguishes, V moves.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np

from ramify.base.seeds import generator
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.env.builtin.maze import MazeEnvironment
from ramify.methods.maze_recovery.algorithm import exit_steps, gradient, growth, search_steps, slope, train_exact
from ramify.methods.maze_recovery.star import FAMILIES, Maze, TabularPolicy
from ramify.train.batch import Row
from ramify_experiments.lab import Checks, ResultCache, columns, sized
from ramify_experiments.maze_recovery.walks import (
    Graph,
    GridTasks,
    Walks,
    family_rows,
    golden_paths,
    path_counts,
    star_graph,
    star_walks,
    walk,
    without_loops,
)
from ramify_experiments.models import Course, train

LARGE, SMALL = Maze(15, 15, 5), Maze(3, 3, 3)
#: What the paper, its public reproduction and the specification print for W = K = 15, L = 5 (exit times: L = 5).
PRINTED = {
    "base, expected steps": "50142",
    "optimum, expected steps": "900",
    "golden SFT limit, expected steps": "4.318448e14",
    **{f"RLVR after {n} sign steps": v for n, v in ((100, "20239.88"), (300, "4177.95"), (600, "1078.01"), (1200, "900.44"))},
    **{
        f"least {f} after 1200 sign steps": v
        for f, v in zip(FAMILIES, (".9999693", ".9999988", ".9999988", ".9999693"), strict=True)
    },
    **{f"largest dJ/dD of {f} at the base": v for f, v in zip(FAMILIES, ("2348.7", "368.7", "469.4", "2075.0"), strict=True)},
    **{f"golden SFT exit time, K = {k}": v for k, v in ((3, "1580.056"), (5, "82376.78"), (7, "4271082.47"))},
    "search wrapper, golden SFT": "1019",
    "search wrapper, RLVR": "473",
}


def theory() -> dict[str, float]:
    """Item 1: every number of :data:`PRINTED`, the least gradient on the way, and growth in K at W = 5, L = 3."""
    policy, curve = train_exact(LARGE, "rlvr", steps=1200, lr=0.01)
    found = {
        "base, expected steps": LARGE.expected_steps("base"),
        "optimum, expected steps": LARGE.expected_steps("optimal"),
        "golden SFT limit, expected steps": LARGE.expected_steps("golden_sft"),
        **{f"RLVR after {n} sign steps": curve[n] for n in (100, 300, 600, 1200)},
        **{f"least {f} after 1200 sign steps": float(p.min()) for f, p in policy.families().items()},
    }
    largest = gradient(LARGE, LARGE.base())[0].max(axis=1)
    found |= {f"largest dJ/dD of {f} at the base": float(g) for f, g in zip(FAMILIES, largest, strict=True)}
    found |= {f"golden SFT exit time, K = {k}": float(exit_steps(k, 5)) for k in (3, 5, 7)}
    found |= {"search wrapper, golden SFT": float(search_steps(LARGE, "golden_sft"))}
    found |= {"search wrapper, RLVR": float(search_steps(LARGE, "optimal"))}
    sizes = range(4, 9)
    mazes = [Maze(5, k, 3) for k in sizes]
    trained = [m.log_steps(train_exact(m, "rlvr", steps=1200, lr=0.01)[0]) for m in mazes]
    found["slope of ln(golden SFT steps) in K"] = slope(sizes, [m.log_steps("golden_sft") for m in mazes])
    found["slope of ln(base steps) in ln K"] = slope(np.log(sizes), [m.log_steps("base") for m in mazes])
    found["slope of ln(RLVR steps) in ln K"] = slope(np.log(sizes), trained)
    return found


def search(maze: Maze, policy: str, walks: int, seed: int) -> list[float]:
    """Costs of ``walks`` simulated searches with the wrapper, K of at least 1.

    Each proposal costs 1; one to an edge state visited on this excursion or to a finished branch is refused and sampled again.
    """
    rng = generator(seed, "search", policy)
    chance = dict(zip(FAMILIES, map(float, maze.named(policy)), strict=True)) | {"leaf": 1.0}
    last, costs = maze.K - 1, []
    for _ in range(walks):
        target, cost, branch = int(rng.integers(maze.W)), 1, -1
        finished: set[int] = set()
        while target not in finished:
            branch, cost = int(rng.integers(maze.W)), cost + 1
            if branch in finished:
                continue
            here = ("c", 0)
            seen = {here}
            while here[0] != "fork" and target not in finished:
                family, j = here
                ahead = ("c", j + 1) if j < last else ("leaf", 0)
                backward = ("b", j - 1) if j else ("fork", 0)
                desired, other = {
                    "a": (ahead, ("d", j)),
                    "b": (("d", j), ahead),
                    "c": (("a", j), backward),
                    "d": (backward, ("a", j)),
                    "leaf": (("b", last), here),
                }[family]
                proposal, cost = desired if rng.random() < chance[family] else other, cost + 1
                if proposal not in seen:
                    seen.add(proposal)
                    here = proposal
                if here[0] == "leaf":
                    finished.add(branch)
        costs.append(float(cost))
    return costs


def advantages(walks: Walks, group: np.ndarray, to_go: bool) -> np.ndarray:
    """Group-normalised reward of every move, (E,). Each step costs 1; ``group`` (N,) names the walks compared with each other.

    Everything a walk cost (GRPO's one reward a walk), or with ``to_go`` what it cost from that move on: the same expected
    gradient with less noise.
    """
    cost = walks.length[walks.walker] - (walks.time if to_go else 0)
    each = group[walks.walker]
    # of a reward for the whole walk the statistics are over walks, else over moves
    value, of = (cost, each) if to_go else (walks.length, group)
    n = np.maximum(1, np.bincount(of))
    mean = np.bincount(of, value) / n
    spread = np.sqrt(np.maximum(0.0, np.bincount(of, value.astype(np.float64) ** 2) / n - mean**2))
    return np.asarray((mean[each] - cost) / (spread[each] + 1e-6))


# --- item 2: a table per branch ---------------------------------------------------------------------------------------------


def tabular(
    seed: int, updates: int = 200, episodes: int = 256, lr: float = 0.5, cap: int = 1000, steps: int = 4000
) -> dict[str, float]:
    """Expected steps (exact) of every regime; each row of each branch is a parameter of its own, the fork stays uniform."""
    graph = star_graph(SMALL.W, SMALL.K, SMALL.L)
    state, desired, other = family_rows(SMALL.W, SMALL.K, graph)
    rng = generator(seed, "tabular")
    one = np.zeros(episodes, dtype=np.int64)

    def table(policy: TabularPolicy) -> np.ndarray:
        p, out = policy.probabilities, graph.uniform.copy()
        out[state, desired], out[state, other] = p, 1 - p
        return out

    def rows(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return counts[state, desired], counts[state, desired] + counts[state, other]

    policy = TabularPolicy(np.zeros((SMALL.W, 4, SMALL.K)), SMALL.L)
    for _ in range(updates):
        walks = star_walks(SMALL.W, SMALL.K, graph, table(policy), episodes, cap, rng)
        right, both = rows(walks.counts(graph, advantages(walks, one, to_go=False)))
        policy = TabularPolicy(policy.gaps + lr / episodes * (right - both * policy.probabilities), SMALL.L)
    traces = star_walks(SMALL.W, SMALL.K, graph, table(policy), 2000, cap, rng).places(graph)
    data = {
        "golden SFT": golden_paths(SMALL.W, SMALL.K),
        "distilled": traces,
        "distilled, loop-erased": without_loops(traces),
        "distilled, shortest third": sorted(traces, key=len)[: len(traces) // 3],
    }
    found = {"base": SMALL.expected_steps("base"), "RL": SMALL.expected_steps(policy)}
    for regime, paths in data.items():
        counts = path_counts(graph, paths)
        right, both = rows(counts / counts.sum())
        student = TabularPolicy(np.zeros_like(policy.gaps), SMALL.L)
        for _ in range(steps):  # the gradient is per token, so equal steps are equal tokens
            student = TabularPolicy(student.gaps + 20.0 * (right - both * student.probabilities), SMALL.L)
        found[regime] = SMALL.expected_steps(student)
    return found


# --- items 3 and 4: a small network -------------------------------------------------------------------------------------------


def make_network(graph: Graph, seed: int, width: int = 64) -> TinyLM:
    """A decoder of two layers that sees the two tokens of a context."""
    return TinyLM(TinyConfig(graph.uniform.shape[1], width, 2, 2, 2, width // 2, 4 * width, context=4), seed)


def network_policy(net: TinyLM, graph: Graph) -> np.ndarray:
    """(C, V) log-probabilities of the moves; what the maze refuses is not hidden from the network."""
    import torch

    with torch.no_grad():
        logits = net(torch.from_numpy(graph.prompt))[:, -1].double()
    return np.asarray(logits.log_softmax(-1).numpy())


def train_rows(graph: Graph, values: np.ndarray, name: str, logp: np.ndarray | None = None) -> list[Row]:
    """One row (context, move) for each entry of ``values`` (C, V) that is not 0; it goes in as the row's values ``name``."""
    mask = np.array([False, False, True])
    out = []
    for c, m in zip(*np.nonzero(values), strict=True):
        along = {name: values[c, m]} | ({} if logp is None else {"logprobs": logp[c, m]})
        token_values = {name: np.array([0, 0, value], dtype=np.float32) for name, value in along.items()}
        out.append(Row(np.array([*graph.prompt[c], m], dtype=np.int32), mask, token_values))
    return out


def imitate(net: TinyLM, graph: Graph, counts: np.ndarray, steps: int, seed: int, tokens: int = 2048, lr: float = 1e-3) -> TinyLM:
    """A copy of ``net`` after cross-entropy on ``steps`` batches of ``tokens`` moves sampled from ``counts`` (C, V)."""
    rng, share = generator(seed, "imitate"), (counts / counts.sum()).ravel()

    def batch(step: int) -> list[Row]:
        sampled = rng.multinomial(tokens, share).reshape(counts.shape)
        return train_rows(graph, sampled * (np.count_nonzero(sampled) / tokens), "weight")

    return train(copy.deepcopy(net), batch, Course(lr, steps), seed)


def reinforce(
    net: TinyLM, graph: Graph, play: Callable[[np.ndarray, int], tuple[Walks, np.ndarray]], updates: int, seed: int, lr: float
) -> TinyLM:
    """A copy of ``net`` after GRPO: ``play(policy, update)`` gives walks and the group of each; lr falls linearly to 0."""
    net = copy.deepcopy(net)

    def batch(update: int) -> list[Row]:
        logp = network_policy(net, graph)
        walks, group = play(np.exp(logp), update)
        values = walks.counts(graph, advantages(walks, group, to_go=True))
        return train_rows(graph, values / max(1e-9, float(np.abs(values).mean())), "advantage", logp)

    return train(net, batch, Course(lr, updates, decay="linear"), seed, {"policy_gradient": 1.0})


def network(
    seed: int, updates: int = 400, episodes: int = 2048, steps: int = 300, walks: int = 1000
) -> dict[str, dict[str, float]]:
    """Item 3: families, mean steps and unfinished share at a cap of 2,000 of every regime, from one pretrained network."""
    graph = star_graph(SMALL.W, SMALL.K, SMALL.L)
    state, desired, _ = family_rows(SMALL.W, SMALL.K, graph)
    nowhere = np.full(2000, -9)
    start = np.full(2000, graph.state_at[-1, 0])
    uniform = walk(graph, graph.uniform, start, nowhere, 59, generator(seed, "pretrain"))
    base = imitate(make_network(graph, seed), graph, uniform.counts(graph), steps, seed)

    def play(policy: np.ndarray, update: int) -> tuple[Walks, np.ndarray]:
        return star_walks(SMALL.W, SMALL.K, graph, policy, episodes, 1000, generator(seed, "rl", update)), np.zeros(
            episodes, dtype=np.int64
        )

    taught = reinforce(base, graph, play, updates, seed, 2e-4)
    traces = star_walks(
        SMALL.W, SMALL.K, graph, np.exp(network_policy(taught, graph)), 1000, 1000, generator(seed, "traces")
    ).places(graph)
    data = {"golden SFT": golden_paths(SMALL.W, SMALL.K), "distilled": traces, "distilled, loop-erased": without_loops(traces)}
    nets = {"pretrained": base, "RL": taught}
    nets |= {name: imitate(base, graph, path_counts(graph, paths), steps, seed) for name, paths in data.items()}
    found = {}
    for name, net in nets.items():
        policy = np.exp(network_policy(net, graph))
        seen = star_walks(SMALL.W, SMALL.K, graph, policy, walks, 2000, generator(seed, "eval"))
        rows = policy[state, desired].mean(axis=(0, 2))
        found[name] = dict(zip(FAMILIES, rows.tolist(), strict=True)) | {
            "unfinished": float(1 - seen.done.mean()),
            "steps": float(seen.length.mean()),
            "refused": float((graph.follow[seen.state, seen.move] == seen.state).mean()),
        }
    return found


def grids(seed: int, updates: int = 400, tasks: int = 128, steps: int = 300, cap: int = 400) -> dict[str, dict[str, float]]:
    """Item 4: success within 1, 2, 4 and 8 times the shortest path on held-out random grids, for every regime."""
    environment = MazeEnvironment("grid-5")
    learn, test = (GridTasks.of(list(environment.task_set(split, tasks, seed))) for split in ("train", "eval"))
    graph, n = learn.graph, len(learn.start)
    nowhere = np.full(8 * n, -9)
    uniform = walk(graph, graph.uniform, np.tile(learn.start, 8), nowhere, 60, generator(seed, "pretrain"))
    base = imitate(make_network(graph, seed), graph, uniform.counts(graph), steps, seed)

    def play(policy: np.ndarray, update: int) -> tuple[Walks, np.ndarray]:
        rng = generator(seed, "rl", update)
        group = np.repeat(rng.choice(n, 64, replace=False), 16)
        return walk(graph, policy, learn.start[group], learn.goal[group], cap, rng), group

    taught = reinforce(base, graph, play, updates, seed, 5e-4)
    each = np.repeat(np.arange(n), 8)
    policy = np.exp(network_policy(taught, graph))
    traces = walk(graph, policy, learn.start[each], learn.goal[each], cap, generator(seed, "traces")).places(graph)
    data = {"golden SFT": learn.golden, "distilled": traces, "distilled, loop-erased": without_loops(traces)}
    nets = {"pretrained": base, "RL": taught}
    nets |= {name: imitate(base, graph, path_counts(graph, paths), steps, seed) for name, paths in data.items()}
    found = {}
    for name, net in nets.items():
        seen = walk(
            test.graph, np.exp(network_policy(net, graph)), test.start[each], test.goal[each], cap, generator(seed, "eval")
        )
        shortest = test.shortest[each]
        within = {f"{k} x": float((seen.done & (seen.length <= k * shortest)).mean()) for k in (1, 2, 4, 8)}
        found[name] = within | {"steps": float(seen.length.mean()), "unfinished": float(1 - seen.done.mean())}
    return found


# --- checks -------------------------------------------------------------------------------------------------------------------


@sized("maze-recovery", quick=1, cpu=5)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Section 7(a). ``quick``: one seed, less training, looser thresholds, no random grids."""
    quick, checks = size == "quick", Checks(seeds)
    checks += _theory(cells, 200 if quick else 2000)
    less = {"updates": 80, "steps": 2000} if quick else {}
    _tabular(
        checks, cells.grid(tabular, {"tabular": less}, seeds)["tabular"], (0.6, 2.5, 1.5, 2.0) if quick else (0.35, 3, 1.25, 3)
    )
    less = {"updates": 40, "episodes": 1024, "steps": 150, "walks": 500} if quick else {}
    _network(checks, cells.grid(network, {"network": less}, seeds)["network"], 0.3 if quick else 0.4)
    for name, runs in {} if quick else columns(cells.grid(grids, {"grids": {}}, seeds)["grids"]).items():
        for what, values in columns(runs).items():
            checks.mean(f"random grids, {name}: {'within ' * what.endswith('x')}{what}", values)
    return checks


def _theory(cells: ResultCache, walks: int) -> Checks:
    found, checks, worst = cells.get("theory", theory), Checks(()), 0.0
    for name, text in PRINTED.items():
        digits = text.partition("e")[0].partition(".")[2]
        unit = 10.0 ** (-len(digits) + int(text.partition("e")[2] or 0))
        worst = max(worst, abs(found[name] - float(text)) / unit)
        checks.value(name, found[name], 1)
    checks.value("largest distance from a printed figure, in units of its last digit", worst, len(PRINTED), "<=", 0.51)
    rate = "slope of ln(golden SFT steps) in K"
    off = abs(found[rate] - math.log(float(growth(Maze(5, 4, 3)))))
    checks.value(rate, found[rate], 5)
    checks.value(f"{rate}, distance from ln((L+1)^2/L) = 1.674", off, 5, "<=", 0.01)
    for name, limit in (("slope of ln(base steps) in ln K", 2.0), ("slope of ln(RLVR steps) in ln K", 1.1)):
        checks.value(name, found[name], 5, "<", limit)
    searched = Checks((0,))
    for policy, name in (("golden_sft", "golden SFT"), ("optimal", "RLVR")):
        costs = cells.get(f"search {policy} {walks}", search, maze=LARGE, policy=policy, walks=walks, seed=0)
        gap = abs(float(np.mean(costs)) - float(search_steps(LARGE, policy))) / (float(np.std(costs)) / math.sqrt(walks))
        searched.mean(f"search wrapper simulated, {name}", costs)
        searched.value(f"search wrapper, {name}: simulated - closed form, in standard errors", gap, walks, "<=", 3.0)
    checks += searched
    return checks


def _tabular(checks: Checks, done: Sequence[dict[str, float]], limits: Sequence[float]) -> None:
    steps = columns(done)
    for name, values in steps.items():
        checks.mean(f"table, expected steps: {name}", values)
    pairs = (
        ("RL", "base", "<="),
        ("golden SFT", "base", ">="),
        ("distilled", "RL", "<="),
        ("distilled, loop-erased", "RL", ">="),
    )
    for (one, other, op), limit in zip(pairs, limits, strict=True):
        checks.mean(f"table: {one} / {other}", np.divide(steps[one], steps[other]), op, limit)


def _network(checks: Checks, done: Sequence[dict[str, dict[str, float]]], gap: float) -> None:
    of = {name: {what: np.array(values) for what, values in columns(runs).items()} for name, runs in columns(done).items()}
    for name, found in of.items():
        for what in (*FAMILIES, "unfinished", "steps", "refused"):
            checks.mean(f"network, {name}: {what}", found[what])
    gold, raw, cut = (of[name]["unfinished"] for name in ("golden SFT", "distilled", "distilled, loop-erased"))
    checks.mean("network: unfinished, golden SFT - RL", gold - of["RL"]["unfinished"], ">=", gap)
    nearer = np.abs(raw - gold) - np.abs(cut - gold)
    checks.mean("network: how much nearer to golden SFT loop-erased distillation is than raw", nearer, ">", 0.0)
    for f in ("b", "d"):
        checks.mean(f"network: drift of {f} under golden SFT", of["golden SFT"][f] - of["pretrained"][f])
