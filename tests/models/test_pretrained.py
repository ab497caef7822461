"""A folder full of traps: whatever lutlab does with a model's folder, no code there runs and nobody is asked.

Each trap writes a canary beside the folder when it runs: the configuration's, model's and tokenizer's own code, a
pickle under each name that somebody loads, a custom generate. stdin answers `y` to any question, and counts them.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.command_line import CommandLine
from tests.models.architectures import make
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelSpec
from lutlab.evaluators import peak_memory
from lutlab.experiment.run import generate_command
from lutlab.models import load, pretrained, shape

AUTO_MAP = {
    "AutoConfig": "trap.Trap", "AutoModel": "trap.Trap", "AutoModelForCausalLM": "trap.Trap",
    "AutoTokenizer": ["trap.Trap", "trap.Trap"], "AutoProcessor": "trap.Trap",
}  # fmt: skip
PICKLES = (
    "pytorch_model.bin",
    "adapter_model.bin",
    "training_args.bin",
    "tokenizer.pkl",
    "vocab.pkl",
)


class Bomb:
    """A pickle that touches a file when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple:
        return Path.touch, (self.canary,)


class Yes:
    """A terminal whose user says yes to everything; `asked` counts."""

    asked = 0

    def readline(self, *_: int) -> str:
        Yes.asked += 1
        return "y\n"

    read = readline

    def fileno(self) -> int:
        return os.open(os.devnull, os.O_RDONLY)


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def set_traps(folder: Path) -> None:
    """Every hook that transformers knows, each of which would write ../canary-<name>."""
    for name in ("trap", "modeling_opt", "configuration_opt", "tokenization_opt", "conftest"):
        (folder / f"{name}.py").write_text(
            f"from pathlib import Path\nPath({str(folder.parent / f'canary-{name}')!r}).touch()\nclass Trap: ...\n"
        )
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "trap.py", folder / "custom_generate" / "generate.py")
    for name in PICKLES:
        (folder / name).write_bytes(pickle.dumps(Bomb(folder.parent / f"canary-{name}")))
    template = (
        "{{ cycler.__init__.__globals__.os.system('touch "
        + str(folder.parent)
        + "/canary-chat') }}"
    )
    (folder / "chat_template.jinja").write_text(template)
    change(folder / "config.json", auto_map=AUTO_MAP)
    change(folder / "tokenizer_config.json", auto_map=AUTO_MAP, tokenizer_class="Trap")
    change(folder / "generation_config.json", custom_generate="custom_generate")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    make("opt").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A trapped copy of a good model; afterwards no trap has run, and nobody was asked."""
    found = shutil.copytree(saved, tmp_path / "model")
    set_traps(found)
    monkeypatch.setattr(sys, "stdin", Yes())
    Yes.asked = 0
    pretrained._own_code.cache_clear()
    yield found
    assert sorted(path.name for path in tmp_path.glob("canary-*")) == []
    assert Yes.asked == 0


def of(folder: Path) -> ModelSpec:
    return ModelSpec("trapped", "folder", str(folder))


def test_a_known_architecture_loads_by_transformers_own_code(
    folder: Path, saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine, theirs = (load.load_model(of(f), torch.float32, "cpu", 0).model for f in (folder, saved))
    assert all(
        torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True)
    )
    # The config's code and the tokenizer's, named once each.
    assert caplog.text.count("lutlab never runs") == 2
    assert not hasattr(mine.config, "auto_map")
    load.load_model(of(folder), torch.float32, "cpu", 0, stream=True)
    synthetic = ModelSpec("trapped", "synthetic", str(folder))
    load.load_model(synthetic, torch.float32, "cpu", 0)
    assert shape.shape_of(synthetic).layers == shape.shape_of(of(saved)).layers


def test_the_functions_of_lutlab_run_no_trap(folder: Path, tmp_path: Path) -> None:
    model = load.load_model(of(folder), torch.float32, "cpu", 0).model
    pretrained.tokenizer_of(model.name_or_path, local=False)  # as quantize without calibration=
    lutlab.quantize(model, method="rtn", q=4, g=16)
    quantized = tmp_path / "quantized"
    lutlab.save(model, quantized)
    (quantized / "tokenizer_config.json").write_text("{}")
    (quantized / "SHA256SUMS").unlink(missing_ok=True)  # of the folder without traps
    set_traps(quantized)
    lutlab.load(quantized)


def test_the_process_that_measures_memory_runs_no_trap(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    peak_memory.run(str(folder), "transformers.models.opt.modeling_opt", "2", "1")
    assert json.loads(capsys.readouterr().out)["peak"] > 0


@pytest.mark.parametrize("arguments", [["mode=plan", "method=stored"], ["method=none"]])
def test_the_command_line_runs_no_trap(
    folder: Path, command: CommandLine, arguments: list[str]
) -> None:
    asked = ["model=folder", f"model.id={folder}", "evaluate=[weight_error]", "logger=none"]
    outcome = command(*asked, *arguments, "baseline=false")
    assert "Traceback" not in outcome.err
    assert outcome.code == (2 if "method=stored" in arguments else 0), outcome.err


def test_a_chat_template_reaches_nothing(folder: Path, capsys: pytest.CaptureFixture) -> None:
    asked = ["model=folder", f"model.id={folder}", "method=none", "prompt=x"]
    assert generate_command.main([*asked, "chat=true"]) == 2
    assert "chat template fails (SecurityError" in capsys.readouterr().err


def test_a_row_of_an_architecture_of_its_own_fails_alone(
    folder: Path, command: CommandLine
) -> None:
    change(folder / "config.json", model_type="trap", architectures=["Trap"])
    asked = ["model=folder", f"model.id={folder}", "evaluate=[weight_error]", "logger=none"]
    outcome = command(*asked, "baseline=false")
    assert outcome.code in (1, 2)
    assert "no family of models 'trap'" in outcome.out + outcome.err


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"model_type": "trap"}, "lutlab never runs"),
        ({"attn_implementation": "kernels-community/flash-attn"}, "fetch from the hub and run"),
        ({"text_config": {"_attn_implementation": {"": "a/b"}}}, "fetch from the hub and run"),
        ({"transformers_weights": "other.safetensors"}, "weights of its own choice"),
    ],
)
def test_what_a_config_asks_for_beyond_data_is_refused(
    folder: Path, damage: dict[str, object], message: str
) -> None:
    change(folder / "config.json", **damage)
    for read in (pretrained.config_of, pretrained.tokenizer_of, lutlab.load):
        with pytest.raises(LutlabError, match=message):
            read(folder)


def test_an_adapter_is_refused(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    with pytest.raises(LutlabError, match="merge it into the weights"):
        load.load_model(of(folder), torch.float32, "cpu", 0)
