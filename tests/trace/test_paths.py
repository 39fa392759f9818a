"""Trees and paths: slices, messages, and never a token that was not sampled or given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import NeedsError, UserError
from ramify.trace.node import Context, Insert, Span, context_from_json, make_node
from ramify.trace.path import Path
from ramify.trace.tree import Tree


class Merging:
    """An adversarial tokenizer: sampled tokens are single letters, but encoding text always merges pairs of them."""

    calls = 0

    def encode(self, text: str) -> list[int]:
        Merging.calls += 1
        pairs, _rest = divmod(len(text), 2)
        return [1000 + ord(text[2 * i]) * 256 + ord(text[2 * i + 1]) for i in range(pairs)] + [ord(c) for c in text[2 * pairs :]]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(t) if t < 1000 else chr((t - 1000) // 256) + chr((t - 1000) % 256) for t in tokens)

    def ends(self, tokens: Sequence[int]) -> np.ndarray:
        return np.cumsum([1 if t < 1000 else 2 for t in tokens]).astype(np.int32)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_training_tokens_are_the_sampled_ones(data: st.DataObject) -> None:
    """Over random trees with cuts: path tokens, masks and texts are the pieces put together, and nothing is encoded again."""
    tokenizer = Merging()
    Merging.calls = 0
    tree = Tree("t")
    tree.add(make_node("t", None, 0, "root", ""))
    wanted: dict[str, tuple[list[int], list[bool], list[float]]] = {tree.root.id: ([], [], [])}
    for index in range(data.draw(st.integers(1, 8))):
        parent = data.draw(st.sampled_from(list(tree.nodes.values())))
        offset = data.draw(st.integers(0, len(parent)))
        tokens = data.draw(st.lists(st.integers(97, 122), max_size=9))
        sampled = data.draw(st.booleans())
        logprobs = data.draw(st.lists(st.floats(-9, 0, width=32), min_size=len(tokens), max_size=len(tokens)))
        fields = {"sampled": [True] * len(tokens), "logprobs": logprobs} if sampled else {}
        node = tree.add(
            make_node(
                "t", parent.id, offset, "assistant", tokenizer.decode(tokens), tokens=tokens, index=index,
                ends=tokenizer.ends(tokens), opens=data.draw(st.booleans()), **fields,
            )
        )  # fmt: skip
        before, mask, values = wanted[parent.id]
        keep = len(before) - len(parent) + offset
        wanted[node.id] = (
            before[:keep] + tokens,
            mask[:keep] + [sampled] * len(tokens),
            values[:keep] + (logprobs if sampled else [0.0] * len(tokens)),
        )
    for node_id, (tokens, mask, values) in wanted.items():
        path = tree.path(node_id)
        assert path.tokens.tolist() == tokens
        assert path.tokens.dtype == np.int32
        assert path.sampled.tolist() == mask
        assert path.logprobs.tolist() == values
        assert path.text == tokenizer.decode(tokens)
        assert "".join(m.text for m in path.messages()) == path.text
        assert len(path) == len(tokens)
        credit = {n.id: np.arange(len(n), dtype=np.float32) for n, _ in path.segments}
        assert path.along(credit).tolist() == [float(i) for _, kept in path.segments for i in range(kept)]
        assert [int(n.tokens[i]) for n, kept in path.segments for i in range(kept)] == list(tokens)
    assert Merging.calls == 0
    assert tokenizer.encode(tokenizer.decode([97, 98])) != [97, 98]  # the tokenizer is adversarial


def node(parent: str | None, offset: int, role: str, text: str, **fields: object):
    return make_node("t", parent, offset, role, text, **fields)


def test_messages_and_cuts() -> None:
    tree = Tree("t")
    root = tree.add(node(None, 0, "root", ""))
    system = tree.add(node(root.id, 0, "system", "be good", tokens=[1, 2], ends=[3, 7]))
    ask = tree.add(node(system.id, 2, "user", "hi there", tokens=[3, 4, 5], ends=[0, 2, 8], data={"n": 1}))
    head = tree.add(node(ask.id, 3, "assistant", "", tokens=[6], ends=[0]))
    completion = tree.add(node(head.id, 1, "assistant", "hello you", tokens=[7, 8, 9], ends=[5, 6, 9], opens=False, index=0))
    fork = tree.add(node(completion.id, 1, "assistant", "!", tokens=[10], opens=False, index=0))
    assert [(m.role, m.text, m.data) for m in tree.path(fork.id).messages()] == [
        ("system", "be good", {}), ("user", "hi there", {"n": 1}), ("assistant", "hello!", {})]  # fmt: skip
    assert tree.path(fork.id).tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 10]
    cut = tree.path(ask.id).upto(2)
    assert cut.text == "be goodhi"
    assert tree.path(ask.id).upto(0).messages() == tree.path(system.id).messages()
    with pytest.raises(UserError, match="offset 9 is outside node"):
        tree.path(ask.id).upto(9)
    assert [n.id for n in tree.children(completion.id)] == [fork.id]
    assert [n.id for n in tree.leaves()] == [fork.id]
    with pytest.raises(NeedsError, match="cut at token 1"):
        _ = Path.of([root, node(root.id, 0, "user", "ab", tokens=[1, 2])]).upto(1).text


def test_text_only_nodes_refuse_token_work() -> None:
    tree = Tree("t")
    ask = tree.add(node(None, 0, "user", "hi"))
    reply = tree.add(node(ask.id, 1, "assistant", "ho", tokens=[1, 2], index=0))
    other = tree.add(node(ask.id, 0, "user", "yo"))
    path = tree.path(reply.id)
    assert path.text == "hiho"
    assert [m.text for m in tree.path(other.id).messages()] == ["yo"]
    for name in ("tokens", "sampled", "logprobs"):
        with pytest.raises(NeedsError, match=f"node {ask.id} has text only"):
            getattr(path, name)
    with pytest.raises(NeedsError, match="has text only"):
        path.along({})


def test_tree_hash_and_faults() -> None:
    root = node(None, 0, "root", "")
    pair = [node(root.id, 0, "user", "a", index=i) for i in range(2)]
    assert pair[0].id != pair[1].id
    assert Tree("t", [root, *pair]).hash == Tree("t", [root, *pair[::-1]]).hash != Tree("t", [root]).hash
    tree = Tree("t", [root])
    assert tree.add(node(None, 0, "root", "")) is root
    for message, bad in (
        ("has a root already", node(None, 0, "user", "b")),
        ("not in tree", node("f" * 24, 0, "user", "b")),
        ("starts at offset 1", node(root.id, 1, "user", "b")),
        ("belongs to tree 'u'", make_node("u", root.id, 0, "user", "b")),
    ):
        with pytest.raises(UserError, match=message):
            tree.add(bad)
    with pytest.raises(UserError, match="is empty"):
        _ = Tree("u").root
    for call in (tree.node, tree.children, tree.path):
        with pytest.raises(UserError, match="has no node 'nope'"):
            call("nope")
    assert Path().tokens.shape == (0,)
    with pytest.raises(UserError, match="empty path"):
        Path().upto(0)


def test_a_node_keeps_its_own_arrays() -> None:
    buffer = np.array([1, 2, 3], np.int32)
    kept = node(None, 0, "user", "x", tokens=buffer)
    buffer[0] = 9
    assert kept.tokens.tolist() == [1, 2, 3]
    again = make_node("t", None, np.int64(0), "user", "x", tokens=[1, 2, 3], index=np.int64(-1))
    assert again.id == kept.id


def test_context_json() -> None:
    context = Context((Span("a", 0, 2), Insert("x", (1, 2), "user"), Insert("y")))
    assert context_from_json(context.to_json()) == context
    assert context_from_json(context.to_json()).hash == context.hash
    assert Context((Insert("x"),)).hash != Context((Insert("x", None, "user"),)).hash
