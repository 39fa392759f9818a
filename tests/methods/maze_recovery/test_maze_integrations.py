"""Traces of other people's tools in, rows for other people's trainers out, with those tools themselves."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from maze_cases import base_walks

from ramify.engine.checkpoints import chat_template, model_folder
from ramify.methods.maze_recovery import audit_traces, build_sft

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]


def script() -> ModuleType:
    """docs/foreign_traces.py as a module."""
    for module in ("reasoning_gym", "textworld"):
        pytest.importorskip(module, reason=f"{module} is not installed: THE TRACES OF THE PAGE ARE NOT TESTED")
    spec = importlib.util.spec_from_file_location("foreign_traces", ROOT / "docs" / "foreign_traces.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_rows_of_foreign_traces() -> None:
    foreign = script()
    page = (ROOT / "docs" / "methods" / "maze-recovery-evidence.md").read_text(encoding="utf-8").splitlines()
    for name, traces in (("tower_of_hanoi", foreign.hanoi()), ("jugs", foreign.jugs()), ("rubiks_cube", foreign.cubes())):
        found = audit_traces(traces)
        assert found.success_share.value == 1  # the replayed states end where the solution should
        assert foreign.row(f"reasoning-gym, {name}", found) in page


def test_trl_trains_on_the_rows_as_they_are(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed: THE ROWS FOR TRL ARE NOT TESTED")
    datasets = pytest.importorskip("datasets")
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    folder = model_folder("builtin")
    template = chat_template(folder)
    made = build_sft(base_walks(9), template=template, mode="recovery_mix", token_budget=1500, mask_mistakes=True)
    rows = [example.conversation.to_tokens(template) for example in made.examples]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|end|>", pad_token="<|end|>")
    args = trl.SFTConfig(
        output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=2, learning_rate=0.0, logging_steps=1, max_length=512,
        report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, bf16=False, seed=0,
    )  # fmt: skip
    trainer = trl.SFTTrainer(model=model, args=args, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    kept = [[label for label in row["labels"][:512] if label >= 0] for row in rows]
    for labels in batch["labels"].tolist():
        assert [label for label in labels if label >= 0] in kept  # the mask reached the loss
    trainer.train()
    assert np.isfinite(trainer.state.log_history[0]["loss"])
    assert json.dumps(rows[0])
