"""Untrusted checkpoints: nothing in them runs, and anything but a plain safetensors file is refused at once."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch
from command import Verb

from ramify.base.errors import NeedsError, RamifyError, UserError
from ramify.cli.main import main
from ramify.engine.checkpoints import load_model, model_folder, save_model
from ramify.engine.local import LocalModel
from ramify.model.chat import JinjaTemplate
from ramify.model.tokenizer import HfTokenizer
from ramify.train import checkpoint

BUILTIN = model_folder("builtin")


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The built-in checkpoint without its weights."""
    made = tmp_path / "model"
    made.mkdir()
    for file in BUILTIN.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            (made / file.name).write_bytes(file.read_bytes())
    return made


def header(size: int, body: bytes) -> bytes:
    return struct.pack("<Q", size) + body


def tensors(entries: dict, data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return header(len(text), text) + data


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
WEIGHTS = {
    "empty": b"",
    "short": b"\x00" * 7,
    "header of 2^63 bytes": header(2**63, b"{}"),
    "header of 2^64-1 bytes": header(2**64 - 1, b"{}"),
    "header of 1 GiB in a file of 10 bytes": header(1 << 30, b"{}"),
    "header of 101 MB": header(101_000_000, b"{" + b" " * 100),
    "no JSON": header(4, b"\xff\xfe\x00x"),
    "deep JSON": header(20_000, b"[" * 20_000),
    "offsets beyond the file": tensors({"a": F32 | {"data_offsets": [0, 2**40], "shape": [2**38]}}),
    "offsets that overlap": tensors({"a": F32, "b": F32}, b"\x00" * 8),
    "offsets backwards": tensors({"a": F32 | {"data_offsets": [8, 0]}}, b"\x00" * 8),
    "shape that overflows": tensors({"a": F32 | {"shape": [2**32, 2**32]}}, b"\x00" * 8),
    "another shape": tensors({"model.embed_tokens.weight": F32}, b"\x00" * 8),
    "a zip": b"PK\x03\x04" + b"\x00" * 100,
    "a pickle": pickle.dumps({"a": 1}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_none(folder: Path, name: str, capsys: pytest.CaptureFixture) -> None:
    (folder / "model.safetensors").write_bytes(WEIGHTS[name])
    began = time.process_time()
    with pytest.raises(RamifyError):
        load_model(folder)
    assert time.process_time() - began < 20  # of processor time: no wait of minutes, no allocation of gigabytes
    assert main(["improve", "--model", f"hf:{folder}", "--out", str(folder / "run")]) in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1
    assert not (folder / "run").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.ckpt"])
@pytest.mark.parametrize("kind", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])  # the second loads transformers
def test_pickled_weights_are_not_opened(folder: Path, tmp_path: Path, name: str, kind: str) -> None:
    if kind == "gpt2":  # a type that goes through transformers
        shape = {
            "model_type": "gpt2",
            "n_embd": 8,
            "n_layer": 1,
            "n_head": 1,
            "vocab_size": 20,
            "architectures": ["GPT2LMHeadModel"],
        }
        (folder / "config.json").write_text(json.dumps(shape))
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": Bomb(tmp_path / "ran")}))
        archive.writestr("archive/version", "3")
    with pytest.raises((UserError, NeedsError)):
        load_model(folder)
    (folder / name).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises((UserError, NeedsError)):
        load_model(folder)
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Bomb(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()  # the bomb itself works


def test_a_zip_bomb(folder: Path) -> None:
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(300 << 20), compresslevel=1)
    with pytest.raises((UserError, NeedsError)):
        load_model(folder)


def test_code_in_a_checkpoint_is_not_run(folder: Path, tmp_path: Path) -> None:
    record = {"model_type": "mine", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(record))
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    with pytest.raises((UserError, NeedsError)):
        load_model(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text",
    ["", "[]", "null", "{", "[" * 5000, '{"model_type": ' + "9" * 5000 + "}", '{"model_type": "llama", "hidden_size": -1}',
                                  '{"model_type": "llama", "hidden_size": 1000000000000}', '{"model_type": "llama", '
                                                                                           '"vocab_size": "x"}'])  # fmt: skip
def test_configurations_that_are_none(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(RamifyError):
        load_model(folder)


@pytest.mark.parametrize("text", ["", "{}", "[" * 5000, '{"version": "1.0", "model": {}}'])
def test_tokenizers_that_are_none(folder: Path, text: str) -> None:
    (folder / "model.safetensors").write_bytes((BUILTIN / "model.safetensors").read_bytes())
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(RamifyError):
        load_model(folder)


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_state_of_a_training_run(name: str) -> None:
    with pytest.raises(UserError, match="not a checkpoint"):
        checkpoint.unpack(WEIGHTS[name])


def test_the_state_of_a_training_run_without_its_record() -> None:
    whole = checkpoint.pack({"a": torch.zeros(2)}, {"step": 1})
    assert checkpoint.unpack(whole)[1] == {"step": 1}
    for odd in (whole.replace(b"record", b"recorx"), whole.replace(b"step", b"st\xffp"), whole[:-1]):
        with pytest.raises(UserError, match="not a checkpoint"):
            checkpoint.unpack(odd)


def test_saving_where_nothing_can_be_written(tmp_path: Path) -> None:
    model, _ = load_model(BUILTIN)
    assert isinstance(model, LocalModel)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RamifyError, match="cannot write"):
        save_model(model, BUILTIN, tmp_path / "file")
    with pytest.raises(RamifyError, match="cannot write"):
        save_model(model, BUILTIN, tmp_path / "file" / "inner")


GOOD_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt "
    "%}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    "escape",
    ["{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ raise_exception.__globals__['__builtins__'] }}",
     "{% include '/etc/passwd' %}",
     "{{ cycler.__init__.__globals__.os.system('touch ran') }}", "{{ messages.append({}) }}", "{% for i in range(10**9) %}x{% "
                                                                                              "endfor %}",
     "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}"],
)  # fmt: skip
def test_chat_templates_stay_in_their_sandbox(folder: Path, escape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "chat_template.jinja").write_text(escape + GOOD_TEMPLATE)
    with pytest.raises(RamifyError, match="template"):
        JinjaTemplate.from_folder(HfTokenizer.load(folder), folder)
    assert not (folder / "ran").exists()


def test_a_chat_template_that_is_none_of_these(folder: Path) -> None:
    """What the attacks above are added to is refused for nothing else."""
    (folder / "chat_template.jinja").write_text(GOOD_TEMPLATE)
    assert JinjaTemplate.from_folder(HfTokenizer.load(folder), folder).open("assistant")


def configured(folder: Path, **fields: object) -> Path:
    """The built-in checkpoint with other fields in its config.json."""
    (folder / "model.safetensors").write_bytes((BUILTIN / "model.safetensors").read_bytes())
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(record | fields))
    return folder


@pytest.mark.slow
def test_a_context_that_is_merely_claimed_costs_no_memory(folder: Path) -> None:
    code = (
        "import sys, asyncio, numpy as np; from pathlib import Path; from ramify.engine.checkpoints import load_model;"
        "from ramify.model.protocol import Prefix, Sampling;"
        "model, _ = load_model(Path(sys.argv[1])); model.capabilities;"
        "asyncio.run(model.sample(Prefix(np.arange(8)), 1, Sampling(max_tokens=4), [0]));"
        "print([line for line in open('/proc/self/status') if line.startswith('VmHWM')][0].split()[1])"
    )
    command = [sys.executable, "-c", code, str(configured(folder, max_position_embeddings=8_000_000))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1 << 20  # KiB; the tables of 8 million positions took 4 GiB


@pytest.mark.parametrize(
    "fields",
    [
        {"max_position_embeddings": 10**18}, {"max_position_embeddings": -5}, {"max_position_embeddings": 1.5},
        {"vocab_size": True},
        {"hidden_size": "96"}, {"num_hidden_layers": 0}, {"model_type": ["a"]}, {"model_type": {"a": 1}},
    ],
)  # fmt: skip
def test_sizes_and_kinds_that_are_none(folder: Path, fields: dict, capsys: pytest.CaptureFixture) -> None:
    assert main(["rollout", "--model", f"hf:{configured(folder, **fields)}", "--env", "household"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert next(iter(fields)) in said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"])
@pytest.mark.parametrize("endless", ["device", "pipe"])
def test_a_file_without_an_end_is_not_read(folder: Path, name: str, endless: str, capsys: pytest.CaptureFixture) -> None:
    configured(folder)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/dev/zero") if endless == "device" else os.mkfifo(folder / name)
    began = time.process_time()
    code = main(
        [
            "rollout", "--model", f"hf:{folder}", "--env", "household", "--count", "1", "--attempts", "1", "--max-reply",
            "2", "--dry-run",
        ]
    )  # fmt: skip
    assert code in ((0,) if name == "generation_config.json" else (0, 2))
    assert "Traceback" not in capsys.readouterr().err
    assert time.process_time() - began < 60


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_a_tokenizer_that_blows_texts_up(folder: Path, part: str, verb: Verb) -> None:
    configured(folder)
    record = json.loads((folder / "tokenizer.json").read_text())
    names = {"normalizer": "normalizers", "decoder": "decoders"}
    steps = [{"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 1000}] * 4
    record[part] = {"type": "Sequence", names[part]: steps}
    (folder / "tokenizer.json").write_text(json.dumps(record))
    assert "1e+12 times as long" in verb.refused("rollout", "--model", f"hf:{folder}", "--env", "household")
