"""Loop erasure, recoveries and dead ends, from equal state keys alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.methods.maze_recovery.loops import Loops, Recovery, Ways, ambiguous, attempt_rows, erase_loops, shortest_ways, walk
from ramify.trace.graph import MergedGraph

WALKS = st.lists(st.integers(0, 6), max_size=40)


@given(WALKS)
def test_what_is_left_is_a_simple_path_with_the_same_ends(keys: list[int]):
    kept = erase_loops(keys)
    path = [keys[i] for i in kept]
    assert len(set(path)) == len(path)
    assert path[:1] == keys[:1]
    assert path[-1:] == keys[-1:]
    assert [path[i] for i in erase_loops(path)] == path  # idempotent
    assert all(i == max(at for at, key in enumerate(keys) if key == keys[i]) for i in kept)  # the last visit is kept
    if len(set(keys)) == len(keys):
        assert kept == list(range(len(keys)))
    # every step of what is left was taken in the attempt
    assert all((keys[a], keys[a + 1]) == (keys[a], keys[b]) for a, b in pairwise(kept))


@given(WALKS)
def test_heights_are_the_lengths_of_the_path_without_loops(keys: list[int]):
    found = walk(keys, list(range(len(keys))))
    assert found.heights.tolist() == [len(erase_loops(keys[: t + 1])) for t in range(len(keys))]
    rises = np.diff(found.heights)
    assert (np.sign(rises) == found.moves[:-1]).all()
    for r in found.recoveries:
        assert keys[r.left] == keys[r.at]
        assert r.left < r.turn < r.at
        assert r.depth >= 1
        assert r.steps >= 1
        assert keys[r.at] not in keys[r.left + 1 : r.turn + r.steps]


def by_definition(keys: list[int], actions: list[int]) -> list[Recovery]:
    """The recoveries of an attempt, each looked up anew in all that came before."""
    heights = [len(erase_loops(keys[: t + 1])) for t in range(len(keys))]
    found = []
    for t, key in enumerate(keys):
        before = [s for s in range(t) if keys[s] == key]
        left = [s for s in before if keys[s + 1] != key]
        leads_on = t + 1 == len(keys) or heights[t + 1] > heights[t]
        if not left or not leads_on or actions[t] in [actions[s] for s in before]:
            continue
        back = next(s for s in range(t, 0, -1) if keys[s - 1] != key)
        span = heights[left[-1] : back]
        far = [span[0] + height - 2 * min(span[: i + 1]) for i, height in enumerate(span)]  # down to where the ways part, and up
        turn = far.index(max(far))
        found.append(Recovery(left[-1], left[-1] + turn, t, max(far) + span[0] - heights[left[-1]], back - left[-1] - turn))
    return found


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=30), min_size=1, max_size=3))
def test_recoveries_are_what_they_are_defined_as(attempts: list[list[tuple[int, int]]]):
    rows = [(n, t, key, action) for n, steps in enumerate(attempts) for t, (key, action) in enumerate(steps)]
    rows.sort(key=lambda row: row[1])  # attempts between each other, as a graph may hold them
    g = MergedGraph.of(["t"] * len(rows), *(list(column) for column in zip(*rows, strict=True)))
    expected = []
    for n, steps in enumerate(attempts):
        keys, actions = [key for key, _ in steps], [action for _, action in steps]
        alone = by_definition(keys, actions)
        assert walk(keys, actions).recoveries == alone
        at = {row[1]: i for i, row in enumerate(rows) if row[0] == n}
        expected += [r._replace(left=at[r.left], turn=at[r.turn], at=at[r.at]) for r in alone]
    assert sorted(Loops.of(g).recoveries) == sorted(expected)


def test_one_excursion_is_one_recovery():
    found = walk("sabcbasxg", "L12bbaR12")
    assert found.moves.tolist() == [1, 1, 1, -1, -1, -1, 1, 1, 1]
    assert found.recoveries == [Recovery(left=0, turn=3, at=6, depth=3, steps=3)]  # not one for each state on the way back


def test_the_same_again_is_no_recovery():
    assert not walk("sasasg", "LbLbRx").recoveries[1:]
    assert walk("sasasg", "LbLbRx").recoveries == [Recovery(2, 3, 4, 1, 1)]
    assert not walk("sasasg", "LbLbLx").recoveries


def test_one_action_may_lead_back_over_several_states():
    assert walk("sabcsd", "L12!R1").recoveries == [Recovery(0, 3, 4, 3, 1)]  # efficiency 1/3


def test_what_changes_nothing_is_a_stall():
    found = walk("sssag", "1234.")
    assert found.moves.tolist() == [0, 0, 1, 1, 1]
    assert not found.recoveries
    stalled = walk("sabssd", "L1b?R1")  # back at s something fails first
    assert stalled.recoveries == [Recovery(0, 2, 4, 2, 1)]


def test_a_return_by_another_way_counts_too():
    found = walk(["hall", "kitchen", "hall", "room", "kitchen", "yard"], ["k", "back", "r", "side", "out", "end"])
    assert [r.at for r in found.recoveries] == [2, 4]
    assert found.recoveries[1] == Recovery(1, 3, 4, 2, 1)


def test_a_restart_leaves_states_behind():
    again = walk("sabcsax", "123!14.")  # back to s by one action, on to a as before, and there another way
    assert again.recoveries == [Recovery(left=1, turn=3, at=5, depth=2, steps=2)]


class Counted:
    """A state that counts how often it is looked up."""

    looked = 0

    def __init__(self, name: object) -> None:
        self.name = name

    def __hash__(self) -> int:
        Counted.looked += 1
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counted) and self.name == other.name


@pytest.mark.parametrize("n", [50, 500])
def test_work_grows_with_the_steps_alone(n: int):
    """A deep search whose every return is a recovery: each excursion lies within the next."""
    keys: list[object] = list(range(n))
    for j in reversed(range(n)):
        keys += [f"leaf {j}", j]
    Counted.looked = 0
    found = walk([Counted(key) for key in keys], list(range(len(keys))))
    assert len(found.recoveries) == n
    assert found.recoveries[-1].depth == n
    assert Counted.looked < 20 * len(keys)


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="2 states for 1 actions"):
        walk("ab", "x")


def graph(*walks: tuple[str, str], tasks: str | None = None) -> MergedGraph:
    rows = [
        (tasks[n] if tasks else "t", n, t, key, f"{key}>{nxt}")
        for n, (keys, end) in enumerate(walks)
        for t, (key, nxt) in enumerate(zip(keys, [*keys[1:], end], strict=True))
    ]
    return MergedGraph.of(*(list(column) for column in zip(*rows, strict=True)))


def keys_of(g: MergedGraph, flags: np.ndarray) -> str:
    return "".join(str(g.keys[i]) for i in np.flatnonzero(flags))


def test_ways_and_dead_ends():
    g = graph(("fabafcd", "goal"), ("fxy", "lost"), ("fx", "limit"))
    ways = Ways.of(g, Loops.of(g), np.array([True, False, False]), np.array([False, False, True]))
    assert keys_of(g, ways.on) == "fcd"
    assert keys_of(g, ways.off) == "abxy"
    assert keys_of(g, ways.dead) == "by"  # x leads on to y, and what a limit ended is not known to be dead


def test_a_limit_is_no_dead_end():
    g = graph(("fg", "goal"), ("fx", "limit"))
    assert keys_of(g, Ways.of(g, Loops.of(g), np.array([True, False])).dead) == "x"
    assert keys_of(g, Ways.of(g, Loops.of(g), np.array([True, False]), np.array([False, True])).dead) == ""


def test_nothing_is_known_where_nobody_succeeded():
    g = graph(("fab", "lost"), ("fcd", "goal"), tasks="uv")
    ways = Ways.of(g, Loops.of(g), np.array([False, True]))
    assert keys_of(g, ways.on | ways.off) == "fcd"
    with pytest.raises(UserError, match="'success' has 1 entry for 2 attempts"):
        Ways.of(g, Loops.of(g), np.array([True]))


def test_the_shortest_way_puts_attempts_together():
    g = graph(("abcdz", "goal"), ("axd", "lost"), ("xyz", "lost"))
    way = shortest_ways(g, np.array([True, False, False]))[0]
    assert [g.keys[g.visit_group[row]] for row in way] == ["x", "d", "z"]  # attempts may start in different states
    g = graph(("abcdz", "goal"), ("axd", "lost"))
    assert "".join(g.keys[g.visit_group[row]] for row in shortest_ways(g, np.array([True, False]))[0]) == "axdz"
    assert not shortest_ways(g, np.array([False, False]))


def test_shortest_ways_of_several_tasks_stay_apart():
    g = graph(("abcz", "goal"), ("acd", "lost"), ("aqz", "goal"), ("az", "lost"), tasks="uuvw")
    ways = shortest_ways(g, np.array([True, False, True, False]))
    assert {g.tasks[t]: "".join(g.keys[g.visit_group[row]] for row in way) for t, way in ways.items()} == {"u": "acz", "v": "aqz"}


def test_ambiguity_counts_moves_that_led_elsewhere():
    g = MergedGraph.of(["t"] * 6, [0, 0, 1, 1, 2, 2], [0, 1] * 3, ["a", "b", "a", "b", "a", "c"], ["go"] * 6, ["end"] * 6)
    rows, odd = ambiguous(g)
    assert (odd.sum(), len(rows)) == (1, 5)  # of three "go" in a one led to c; two "go" in b ended alike; one in c says nothing
    rows, odd = ambiguous(graph(("abc", "goal"), ("abc", "goal")))
    assert (odd.sum(), len(rows)) == (0, 6)


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=12), min_size=1, max_size=5))
def test_rows_of_attempts_and_kept_rows(walks: list[list[int]]):
    rows = [(n, t, key) for n, keys in enumerate(walks) for t, key in enumerate(keys)]
    g = MergedGraph.of(["t"] * len(rows), *(list(column) for column in zip(*rows, strict=True)), ["go"] * len(rows))
    loops = Loops.of(g)
    for keys, own in zip(walks, attempt_rows(g), strict=True):
        assert [g.keys[i] for i in g.visit_group[own]] == keys
        assert np.flatnonzero(loops.kept[own]).tolist() == erase_loops(keys)
