"""A folder full of traps: whatever lutlab does with a model's folder, no code there runs and nobody is asked.

Each trap writes a canary beside the folder when it runs: the configuration's, model's and tokenizer's own code, a
pickle under each name that somebody loads, a custom generate. stdin answers `y` to any question, and counts them.
"""

import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from tests.base.refusals import refused
from tests.models.folders import change_config, loaded, spec

import lutlab
from lutlab.evaluators import peak_memory
from lutlab.experiment.run import generate_command
from lutlab.models import pretrained, shape

AUTO_MAP = {
    "AutoConfig": "trap.Trap", "AutoModel": "trap.Trap", "AutoModelForCausalLM": "trap.Trap",
    "AutoTokenizer": ["trap.Trap", "trap.Trap"], "AutoProcessor": "trap.Trap",
}  # fmt: skip
PICKLES = ("pytorch_model.bin", "adapter_model.bin", "training_args.bin", "tokenizer.pkl", "vocab.pkl")  # fmt: skip


class Bomb(str):
    """A path; its pickle touches the file when it is loaded."""

    def __reduce__(self):
        return Path.touch, (Path(self),)


def set_traps(folder):
    """Every hook that transformers knows, each of which would write ../canary-<name>."""
    for name in ("trap", "modeling_opt", "configuration_opt", "tokenization_opt", "conftest"):
        touch = f"Path({str(folder.parent / f'canary-{name}')!r}).touch()"
        code = f"from pathlib import Path\n{touch}\nclass Trap: ...\n"
        (folder / f"{name}.py").write_text(code)
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "trap.py", folder / "custom_generate" / "generate.py")
    for name in PICKLES:
        (folder / name).write_bytes(pickle.dumps(Bomb(folder.parent / f"canary-{name}")))
    call = f"cycler.__init__.__globals__.os.system('touch {folder.parent}/canary-chat')"
    (folder / "chat_template.jinja").write_text(f"{{{{ {call} }}}}")
    change_config(folder, auto_map=AUTO_MAP)
    change_config(folder, "tokenizer_config.json", auto_map=AUTO_MAP, tokenizer_class="Trap")
    change_config(folder, "generation_config.json", custom_generate="custom_generate")


@pytest.fixture
def folder(folder, tmp_path, monkeypatch):
    """A trapped copy of a good model; afterwards no trap has run, and nobody was asked."""
    set_traps(folder)
    fileno, yes = (lambda: os.open(os.devnull, os.O_RDONLY)), (lambda *_: "y\n")
    stdin = mock.Mock(
        readline=mock.Mock(side_effect=yes), read=mock.Mock(side_effect=yes), fileno=fileno
    )
    monkeypatch.setattr(sys, "stdin", stdin)
    pretrained._own_code.cache_clear()
    yield folder
    assert sorted(path.name for path in tmp_path.glob("canary-*")) == []
    assert not stdin.method_calls


@pytest.fixture
def row(folder):
    return ["model=folder", f"model.id={folder}", "evaluate=[weight_error]", "logger=none"]


def test_a_known_architecture_loads_by_transformers_own_code(folder, saved, caplog):
    mine, theirs = (loaded(path).model.state_dict() for path in (folder, saved))
    torch.testing.assert_close(dict(mine), dict(theirs), rtol=0, atol=0)
    # The config's code and the tokenizer's, named once each.
    assert caplog.text.count("lutlab never runs") == 2
    assert not hasattr(loaded(folder).model.config, "auto_map")
    loaded(folder, stream=True)
    loaded(folder, "synthetic")
    shapes = (shape.shape_of(spec(folder, "synthetic")), shape.shape_of(spec(saved)))
    assert shapes[0].layers == shapes[1].layers


def test_the_functions_of_lutlab_run_no_trap(folder, tmp_path):
    model = loaded(folder).model
    pretrained.tokenizer_of(model.name_or_path, local=False)  # as quantize without calibration=
    lutlab.quantize(model, method="rtn", q=4, g=16)
    quantized = tmp_path / "quantized"
    lutlab.save(model, quantized)
    (quantized / "tokenizer_config.json").write_text("{}")
    (quantized / "SHA256SUMS").unlink(missing_ok=True)  # of the folder without traps
    set_traps(quantized)
    lutlab.load(quantized)


def test_the_process_that_measures_memory_runs_no_trap(folder, capsys):
    peak_memory.run(str(folder), "transformers.models.opt.modeling_opt", "2", "1")
    assert json.loads(capsys.readouterr().out)["peak"] > 0


@pytest.mark.parametrize(("method", "code"), [("stored", 2), ("none", 0)])
def test_the_command_line_runs_no_trap(row, command, method, code):
    mode = ["mode=plan"] if method == "stored" else []
    outcome = command(*row, f"method={method}", *mode, "baseline=false")
    assert "Traceback" not in outcome.err
    assert outcome.code == code, outcome.err


def test_a_chat_template_reaches_nothing(row, capsys):
    assert generate_command.main([*row[:2], "method=none", "prompt=x", "chat=true"]) == 2
    assert "chat template fails (SecurityError" in capsys.readouterr().err


def test_a_row_of_an_architecture_of_its_own_fails_alone(folder, row, command):
    change_config(folder, model_type="trap", architectures=["Trap"])
    outcome = command(*row, "baseline=false")
    assert outcome.code in (1, 2)
    assert "no family of models 'trap'" in outcome.out + outcome.err


@pytest.mark.parametrize(("damage", "message"), [
    ({"model_type": "trap"}, "lutlab never runs"),
    ({"attn_implementation": "kernels-community/flash-attn"}, "fetch from the hub and run"),
    ({"text_config": {"_attn_implementation": {"": "a/b"}}}, "fetch from the hub and run"),
    ({"transformers_weights": "other.safetensors"}, "weights of its own choice"),
])  # fmt: skip
def test_what_a_config_asks_for_beyond_data_is_refused(folder, damage, message):
    change_config(folder, **damage)
    for read in (pretrained.config_of, pretrained.tokenizer_of, lutlab.load):
        refused(message, read, folder)


def test_an_adapter_is_refused(folder):
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    refused("merge it into the weights", loaded, folder)
