"""A text as it is."""

from __future__ import annotations

from ramify.engine.checkpoints import model_folder
from ramify.model.chat import RawTemplate
from ramify.model.tokenizer import HfTokenizer


def test_nothing_is_put_around_a_text() -> None:
    tokenizer = HfTokenizer.load(model_folder("builtin"))
    template = RawTemplate(tokenizer)
    tokens, ends, text = template.render("user", "go kitchen")
    assert (tokens, text) == (tokenizer.encode("go kitchen"), "go kitchen")
    assert ends[-1] == len(text)
    assert template.open("assistant") == template.close("user") == []
