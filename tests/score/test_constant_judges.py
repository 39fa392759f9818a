"""A judge that never varies is named by every verb it judged for."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from ramify import kit
from ramify.base.verdicts import LEAST
from ramify.base.waiting import wait_for
from ramify.kit import Verbs
from ramify.model.function import FunctionModel
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.render.result import Result, Section
from ramify.rollout.sampler import Sampler
from ramify.score.judge import Item, find_judge, judged
from ramify.trace.message import Message

app = Verbs("tool")


@dataclass(frozen=True)
class JudgedTexts(Result):
    """How many texts were judged."""

    n: int

    def sections(self) -> list[Section]:
        """Their number."""
        return [Section.of("", str(self.n))]


@app.verb()
def grade(n: int, spec: str) -> JudgedTexts:
    """Judge texts one by one, every third of which is good."""
    for i in range(n):
        wait_for(judged(find_judge(spec), [Item("good" if i % 3 == 0 else "bad", str(i))]))
    return JudgedTexts(n)


@app.verb()
def speak(n: int, cut: int) -> JudgedTexts:
    """Sample replies, the first of which a limit cut."""
    stops = iter(["length"] * cut + ["eos"] * (n - cut))
    sampler = Sampler(FunctionModel(lambda messages: Completion("a", next(stops))))

    async def every() -> None:
        for i in range(n):
            await sampler.one(Prefix(messages=(Message("user", "hi"),)), Sampling(), ("x", i), purpose="act")

    wait_for(every())
    return JudgedTexts(n)


@pytest.mark.parametrize(
    ("spec", "n", "said"),
    [("regex:good", 12, 0), ("regex:nothing", 12, 1), ("regex:o|a", LEAST, 1), ("regex:nothing", LEAST - 1, 0)],
)
def test_a_judge_that_never_varies_is_named(spec: str, n: int, said: int, capsys: pytest.CaptureFixture) -> None:
    assert kit.call(app, ["grade", "--n", str(n), "--spec", spec, "--json"]) == 0
    out, _ = capsys.readouterr()
    caveats = json.loads(out)["caveats"]
    assert len(caveats) == said
    if said:
        value = int("nothing" not in spec)
        assert caveats[0].startswith(
            f"the judge '{find_judge(spec).name}' gave all {n} texts that it judged here the same value, {value}"
        )
    assert kit.call(app, ["grade", "--n", "3", "--spec", "regex:nothing"]) == 0
    assert "same value" not in capsys.readouterr()[1]  # one call's verdicts are not the next one's


def test_replies_that_a_limit_cut_are_counted(capsys: pytest.CaptureFixture) -> None:
    for cut, said in ((3, 1), (2, 0)):
        assert kit.call(app, ["speak", "--n", "30", "--cut", str(cut), "--json"]) == 0
        caveats = json.loads(capsys.readouterr()[0])["caveats"]
        assert [text.startswith("3 of 30 replies were cut by their limit of tokens") for text in caveats] == [True] * said
