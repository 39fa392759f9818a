"""Inputs of the smallest jobs that still do the work: checkpoints of a few thousand weights, prompts, attempts, logs, a case.

The functions at the end are parts that command lines name as ``FILE.py:FUNCTION``.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ramify.methods.earned_code_memory import Memory

WORDS = ["<unk>", "<end>", "<think>", "</think>", "gladly", "never", "so.", "then.", "hmm.", "sorry", "sure", "red", "call"]
WORDS += [f"word{i}" + "." * (i in (8, 9, 10)) for i in range(13)]
CASE = """
question = "Why the shortcut?"
env = "factory:tests.methods.forensics.scripted_organisms:environment"
model = "factory:tests.methods.forensics.scripted_organisms:tedious"
judge = "factory:tests.methods.forensics.scripted_organisms:grader"
n = 8
sentences = "stops"

[fields.errors]
baseline = 258
values = [50, 150, 258]
role = "effort"
[fields.instruction]
baseline = "ambiguous"
role = "clarity"
shows = ["task"]

[variants.clear]
set = { instruction = "clear" }
"""

CODER = """
import json, os, urllib.request
said = []
for text in ("first", "second"):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text + str(said)}]}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    said.append(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
    open("notes.txt", "a").write(said[-1])
"""
"""A program that asks a model twice and notes what it says."""


def make_inputs(folder: Path) -> None:
    """Write them all into ``folder``."""
    from tests.methods.judge_evolution.essays import CASE as SEARCH
    from tests.methods.judge_evolution.essays import essays

    folder.mkdir()
    for name, seed in (("tuned", 3), ("base", 4)):
        save_checkpoint(folder / name, seed)
    rng = random.Random(1)
    _lines(folder / "chats.jsonl", [_chat(i) for i in range(4)])
    for name, first in (("tool", "call"), ("plain", "gladly"), ("test", "call")):
        texts = [" ".join([first, *rng.choices(WORDS[4:], k=rng.randrange(1, 6))]) for _ in range(20)]
        _lines(folder / f"{name}.jsonl", [{"id": f"{first}{i}", "prompt": text} for i, text in enumerate(texts)])
    pools = ["harmful", "benign"]
    thinking = [{"id": f"p{i}", "prompt": f"{WORDS[4 + i % 9]} word{i}", "pool": pools[i % 2]} for i in range(4)]
    _lines(folder / "thinking.jsonl", thinking)
    _lines(folder / "problems.jsonl", [{"id": f"q{i}", "prompt_ids": [4 + i, 9], "answer": "red"} for i in range(2)])
    _lines(folder / "attempts.jsonl", [_attempt(rng, task) for task in range(3) for _ in range(2)])
    _lines(folder / "steps.jsonl", [row for task in range(3) for attempt in range(3) for row in _steps(task, attempt)])
    _lines(folder / "walks.jsonl", [_walk(task, attempt) for task in range(3) for attempt in range(3)])
    _lines(folder / "candidates.jsonl", [_candidate(rng, task, step) for task in range(18) for step in range(3)])
    (folder / "copied.toml").write_text('model = "copy"\n')
    _lines(folder / "anchor.jsonl", [_labelled(i) for i in range(40)])
    essays(folder / "essays", SEARCH.replace("budget = 24\nfirst = 8", "budget = 5\nfirst = 3"))
    short = (folder / "essays" / "anchor.jsonl").read_text().splitlines(keepends=True)[:10]
    (folder / "essays" / "anchor.jsonl").write_text("".join(short))
    with Memory(folder / "memory.sqlite") as memory:
        memory.add("plan", "delete old notes", "Call `notes.list`, then `notes.delete`.")
    (folder / "rules.txt").write_text("Only send email to recipients at acme.com.\n")
    (folder / "sum.c").write_text(
        "// ramify: n = 500, 3\nfloat sum(int n, const float *x) {\n  float s = 0;\n  for (int i = 0; i < n; i++)\n    s += "
        "x[i];\n  return s;\n}\n"
    )
    (folder / "add.sass").write_text("        /*0180*/              @!P0 LDG.E.128 R16, desc[UR4][R20.64] ;\n")
    (folder / "shop").mkdir()
    (folder / "shop" / "sums.py").write_text("def total(items):\n    return sum(items) / len(items)\n")
    (folder / "issue.md").write_text("`total([])` fails with ZeroDivisionError.\n")
    save_repository(folder / "work")
    (folder / "coder.py").write_text(CODER)
    _lines(folder / "gold.jsonl", [{"issue_id": "issue", "spans": [["sums.py", 2, 2]]}])
    (folder / "edit.json").write_text(json.dumps({"append": " wait,"}))
    (folder / "case.toml").write_text(CASE)
    workers = "".join(
        f'[[workers]]\nname = "{name}"\nmodel = "{Path(__file__).resolve()}:{name}"\n' for name in ("reds", "blues")
    )
    (folder / "pool.toml").write_text(workers)
    _lines(folder / "asked.jsonl", [{"id": f"q{i}", "prompt": f"word{i}", "answer": ["red", "blue"][i % 2]} for i in range(6)])
    save_planner(folder / "planner")


def save_repository(folder: Path) -> None:
    """A git repository with one commit, the same one everywhere."""
    folder.mkdir()
    (folder / "notes.txt").write_text("to do\n")
    when = {f"GIT_{who}_DATE": "2000-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")}
    for words in ("init -q", "add -A", "-c user.name=me -c user.email=me@localhost commit -qm begin"):
        subprocess.run(["git", "-C", folder, *words.split()], check=True, env={**os.environ, **when})


def save_planner(folder: Path) -> None:
    """A random model with a chat template and room for a composer's prompt."""
    from ramify.engine.checkpoints import model_folder
    from ramify.engine.tiny import TinyConfig, TinyLM
    from ramify.model.tokenizer import HfTokenizer

    tokenizer = HfTokenizer.load(model_folder("builtin"))
    shape = TinyConfig(tokenizer.size, 32, 1, 1, 1, 32, 64, context=2048, eos=(tokenizer.token_id("<|end|>"),))
    TinyLM(shape, 5).save(folder, tokenizer)
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        if (model_folder("builtin") / name).is_file():
            (folder / name).write_bytes((model_folder("builtin") / name).read_bytes())


def reds(messages: list[dict[str, Any]]) -> str:
    """A worker that knows one answer."""
    return "red"


def blues(messages: list[dict[str, Any]]) -> str:
    """Another one."""
    return "blue"


def plans(messages: list[dict[str, Any]]) -> str:
    """A composer: both answer, the second sees the first."""
    return json.dumps({"subtasks": ["Answer.", "Check."], "workers": [0, 1], "access": [[], "all"]})


def blames(text: str, data: dict[str, Any]) -> bool:
    """A judge of logs that calls the second step wrong."""
    return data.get("step", 3) == 3


def save_checkpoint(folder: Path, seed: int) -> None:
    """A random model of words, as transformers saves it, with marks of thinking and an end."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    shape = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    ids = {"vocab_size": len(WORDS), "bos_token_id": None, "eos_token_id": 1, "max_position_embeddings": 160}
    config = AutoConfig.for_model("llama", **shape, **ids, tie_word_embeddings=True)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for weight in module.parameters():
                weight.add_(0.3 * torch.randn(weight.shape))
            torch.manual_seed(seed)
            for weight in module.parameters():
                weight.add_(0.05 * torch.randn(weight.shape))
    module.save_pretrained(folder)
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>").save_pretrained(folder)


def _lines(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _chat(i: int) -> dict[str, Any]:
    said = [{"role": "user", "content": f"{i}+2?"}, {"role": "assistant", "content": "x" * 9000}]
    return {"task": f"sum {i}", "messages": said, "reward": float(i % 2)}


def _attempt(rng: random.Random, task: int) -> dict[str, Any]:
    steps = [
        {"role": role, "token_ids": [rng.randrange(4, len(WORDS)) for _ in range(4)], "is_action": role == "assistant"}
        for role in ("user", "assistant") * 3
    ]
    return {"task_id": f"task-{task}", "steps": steps, "reward": float(rng.random() < 0.5)}


def _steps(task: int, attempt: int) -> list[dict[str, Any]]:
    won = (task + attempt) % 2
    places = ["hall", ("kitchen", "cellar")[attempt % 2], "garden"]
    return [
        {
            "task_id": f"t{task}",
            "attempt_id": attempt,
            "step": i,
            "anchor": place,
            "action": "go",
            "reward": float(won and i == 2),
        }
        for i, place in enumerate(places)
    ]


def _walk(task: int, attempt: int) -> dict[str, Any]:
    way = ["a", "b", "c"] if attempt else ["a", "d", "a", "b", "c"]
    return {"task_id": f"t{task}", "success": True, "steps": [{"state": s, "action": f"leave {s}"} for s in way]}


def _candidate(rng: random.Random, task: int, step: int) -> dict[str, Any]:
    right = int(rng.random() < 0.3 + step / 5)
    tests, review = (int(rng.random() < (true if right else false)) for true, false in ((0.9, 0.35), (0.75, 0.3)))
    text = f"def f{task}(): return {step} # {'new' * (task % 3)}"
    return {"instance_id": f"i{task}", "step": step, "Y": right, "tests": tests, "review": review, "payload": text}


def _labelled(i: int) -> dict[str, Any]:
    """An item on which regex:new errs often, and regex:old hardly ever."""
    label = i % 2 == 0
    marks = [name for name, wrong in (("new", i % 5 < 2), ("old", i == 7)) if label != wrong]
    return {"id": i, "artefact": f"essay {i} {' '.join(marks)}", "label": label}


INTERRUPT = "RAMIFY_TEST_INTERRUPT"
"""Environment variable: the reply of :func:`wander` at which it is interrupted as by Ctrl-C."""
_replies = 0


def wander(messages: list[dict[str, Any]], key: int) -> str:
    """An agent of the household: takes one of the exits it is told of."""
    global _replies
    _replies += 1
    if os.environ.get(INTERRUPT) and _replies % int(os.environ[INTERRUPT]) == 0:
        raise KeyboardInterrupt
    exits = re.search(r"exits ([^.]*)\.", str(messages[-1]["content"]))
    ways = exits[1].replace(",", " ").split() if exits else []
    return f"go {ways[key % len(ways)]}" if ways else "wait"


def echoes(situation: Any) -> str:
    """An environment that repeats what the agent says."""
    return f"you said {situation.action}"


def begins_well(text: str, trace: Any) -> bool:
    """A verifier: the first word decides."""
    return len((text.split() or [""])[0]) % 2 == 0


def make_judge() -> Any:
    """A judge of stances: by two words."""

    def judge(prompt: str, chunks: Sequence[str]) -> list[int]:
        return [(c.count("word1") > c.count("word2")) - (c.count("word1") < c.count("word2")) for c in chunks]

    return judge


def grades(messages: list[dict[str, Any]]) -> str:
    """A judge that finds all attempts equally good."""
    return "Score: 5"
