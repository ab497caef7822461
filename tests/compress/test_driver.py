"""The driver: statistics of every layer, whose activations a method sees, going on after a kill, what it refuses."""

import dataclasses
import itertools
import shutil
import signal

import pytest
import torch
from tests import warm
from tests.calibrated import Fake, FakeScaling
from tests.command_line import ROOT
from tests.models.architectures import CONFIGS, DIFFERENT, make, token_ids, uniform
from tests.tiny_models import byte_tokenizer

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import CalibStats
from lutlab.compress import calibrate, driver
from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import BlockStore, StatsStore
from lutlab.formats import pack
from lutlab.models.families import decoder_blocks, family_of, linear_layers, weight_of
from lutlab.modules import QuantLinear
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.rtn import RTN

ARCHITECTURES = ["opt", "gpt2"]


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("method", ["rtn", "bcq"])
def test_statistics_are_those_of_the_layers(name, method):
    model = make(name)
    quantizer = registry.lookup("method", method)()
    before = {layer: weight_of(module).clone() for layer, module in linear_layers(model)}
    stats = quantize_model(model, quantizer, uniform(model, 3, 16))
    assert [layer.name for layer in stats] == list(before)
    for layer, module in zip(stats, dict(linear_layers(model)).values(), strict=True):
        weight = before[layer.name].double()
        packed = pack(quantizer.quantize(weight, 3, 16))
        error = (weight - packed.dequantize()).norm().item() ** 2
        assert isinstance(module, QuantLinear)
        assert (layer.out_features, layer.in_features) == tuple(weight.shape)
        assert layer.squared_error == pytest.approx(error, rel=1e-9)
        assert layer.squared_norm == pytest.approx(weight.norm().item() ** 2, rel=1e-9)
        assert layer.bits_stored == packed.bits_stored == module.packed.bits_stored
        assert 0 < layer.squared_error < layer.squared_norm


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_none_rounds_weights_to_half_precision(name):
    model = make(name)
    before = {layer: weight_of(module).clone() for layer, module in linear_layers(model)}
    stats = quantize_model(model, registry.lookup("method", "none")(), uniform(model, 16, -1))
    for layer, (path, module) in zip(stats, linear_layers(model), strict=True):
        assert torch.equal(weight_of(module), before[path].half().float())
        assert module.weight.dtype == torch.float32
        error = (before[path].half().double() - before[path].double()).square().sum().item()
        assert 0 < layer.squared_error == pytest.approx(error)
        assert layer.bits_stored == 16 * before[path].numel()


def test_a_model_in_half_precision_is_quantized_from_its_own_weights():
    model, rounded = make("opt").half(), make("opt").half().float()
    quantizer = registry.lookup("method", "rtn")()
    assert quantize_model(model, quantizer, uniform(model, 4, 16)) == quantize_model(
        rounded, quantizer, uniform(rounded, 4, 16)
    )
    logits = model(token_ids()).logits
    assert logits.dtype == torch.float16
    assert torch.allclose(logits.float(), rounded(token_ids()).logits, atol=0.2, rtol=0.05)


def test_quantizing_twice_is_refused():
    model = make("opt")
    quantizer = registry.lookup("method", "rtn")()
    quantize_model(model, quantizer, uniform(model, 4, 16))
    logits = model(token_ids()).logits
    message = r"^model\.decoder\.layers\.0\.self_attn\.q_proj is quantized already; load the model"
    with pytest.raises(LutlabError, match=message):
        quantize_model(model, quantizer, uniform(model, 4, 16))
    assert torch.equal(model(token_ids()).logits, logits)


@pytest.mark.parametrize("method", ["none", "rtn", "bcq"])
def test_an_error_names_the_layer(method):
    model = make("opt")
    model.model.decoder.layers[1].fc2.weight.data[3, 4] = float("nan")
    with pytest.raises(LutlabError, match=r"^model\.decoder\.layers\.1\.fc2: 1 of 1536 weights"):
        quantize_model(model, registry.lookup("method", method)(), uniform(model, 4, 16))


# ---- whose activations a calibrated method sees, against whole forward passes ----


def seen_by_hooks(model, layers, batches):
    """Hessian, mean |x| and tokens of the inputs of some layers: whole forward passes, no block driver."""
    sums = {}

    def add(name):
        def see(_, args):
            x = args[0].flatten(0, -2)
            hessian, absolute, tokens = sums.get(name, (torch.zeros(x.shape[1], x.shape[1]), 0, 0))
            sums[name] = hessian.addmm_(x.T, x), absolute + x.abs().sum(0), tokens + len(x)

        return see

    hooks = [model.get_submodule(n).register_forward_pre_hook(add(n)) for n in layers]
    with torch.no_grad():
        for batch in batches:
            model(batch, use_cache=False)
    for hook in hooks:
        hook.remove()
    return {n: CalibStats(h / tokens, a / tokens, tokens) for n, (h, a, tokens) in sums.items()}


def quantized_by_hand(model, fake, q, g, batches):
    """The model and the order of things as the papers write them: a full pass before every replacement."""
    family = family_of(model.config)
    full = seen_by_hooks(model, [n for n, _ in linear_layers(model)], batches)
    for index in range(len(decoder_blocks(model))):
        path = f"{family.blocks}.{index}."
        rounds = [[shared] for shared in family.inputs] if fake.true_sequential else [family.inputs]
        for shared_inputs in rounds:
            names = [path + shared.layers[0] for shared in shared_inputs]
            now = full if fake.inputs == "full" else seen_by_hooks(model, names, batches)
            for shared in shared_inputs:
                prepared = fake.prepare(now[path + shared.layers[0]])
                for layer in shared.layers:
                    module = model.get_submodule(path + layer)
                    packed = pack(fake.quantize(weight_of(module), q, g, prepared))
                    model.set_submodule(path + layer, QuantLinear(packed, module.bias))
    return model


def weights_of(model):
    return [
        module.packed.dequantize() if isinstance(module, QuantLinear) else weight_of(module)
        for _, module in linear_layers(model)
    ]


def same_stats(found, expected):
    return len(found) == len(expected) and all(
        torch.equal(a.hessian, b.hessian)
        and torch.equal(a.mean_abs, b.mean_abs)
        and a.tokens == b.tokens
        for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "inputs", "sequential"),
    [
        (name, *(("quantized", True), ("quantized", False), ("full", False))[at % 3])
        for at, name in enumerate(CONFIGS)
    ],
)
def test_inputs_are_those_of_whole_forward_passes(name, inputs, sequential, monkeypatch):
    monkeypatch.setattr(calibrate, "BATCH_TOKENS", 32)
    model, by_hand, windows = make(name), make(name), token_ids(4, 16)
    fake, other = Fake(inputs, sequential), Fake(inputs, sequential)
    quantize_model(model, fake, uniform(model, 3, 16), windows)
    quantized_by_hand(by_hand, other, 3, 16, windows.split(2))
    assert same_stats(fake.seen, other.seen)
    assert all(map(torch.equal, weights_of(model), weights_of(by_hand)))
    assert torch.equal(model(token_ids()).logits, by_hand(token_ids()).logits)


def test_the_three_ways_differ():
    """Else the test above would prove nothing."""
    windows, found = token_ids(4, 16), []
    for fake in (Fake("quantized", True), Fake("quantized", False), Fake("full", False)):
        model = make("opt")
        quantize_model(model, fake, uniform(model, 3, 16), windows)
        found.append(torch.cat([stats.mean_abs for stats in fake.seen]))
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(found, 2))


def test_output_error_is_that_of_the_outputs():
    model, windows = make("opt"), token_ids(4, 16)
    before = {name: weight_of(module).clone() for name, module in linear_layers(model)}
    seen = seen_by_hooks(model, before, [windows])
    stats = quantize_model(model, RTN(), uniform(model, 3, 16), windows)
    for layer in stats:
        module, hessian = model.get_submodule(layer.name), seen[layer.name].hessian.double()
        difference = (module.packed.dequantize() - before[layer.name]).double()
        error = (difference @ hessian * difference).sum().item()
        norm = (before[layer.name].double() @ hessian * before[layer.name].double()).sum().item()
        assert layer.output_error == pytest.approx(error, rel=1e-5)
        assert layer.output_norm == pytest.approx(norm, rel=1e-5)


def test_sums_over_chunks_of_rows_are_the_sums(monkeypatch):
    windows, found = token_ids(2, 16), []
    for chunk in (2**20, 33):
        monkeypatch.setattr(driver, "_CHUNK_WEIGHTS", chunk)
        model = make("opt")
        found.append(quantize_model(model, RTN(), uniform(model, 3, 16), windows))
    for whole, parts in zip(*found, strict=True):
        for field in ("squared_error", "squared_norm", "output_error", "output_norm"):
            assert getattr(parts, field) == pytest.approx(getattr(whole, field), rel=1e-6)


def test_a_calibrated_method_without_calibration_is_refused():
    model = make("opt")
    with pytest.raises(LutlabError, match=r"looks at activations: give calibration="):
        quantize_model(model, Fake(), uniform(model, 3, 16))


# ---- one pass of calibration ----


def forwards(model):
    """Counts from now on how often each block's first linear layer is called."""
    count = [0] * len(decoder_blocks(model))
    for index, block in enumerate(decoder_blocks(model)):

        def see(*_, index=index):
            count[index] += 1

        inside = family_of(model.config).linears[0]
        block.get_submodule(inside).register_forward_pre_hook(see)
    return count


@pytest.mark.parametrize("name", DIFFERENT)
def test_full_precision_inputs_are_seen_once(name, tmp_path):
    windows = token_ids(4, 16)
    for fake, q, g in ((Fake("full"), 3, 16), (Fake("full"), 4, -1), (FakeScaling(), 2, 8)):
        model, alone = make(name), make(name)
        passes = forwards(model)
        stats = quantize_model(
            model, fake, uniform(model, q, g), windows, seen=StatsStore(tmp_path / "id")
        )
        assert passes == ([1, 1] if (q, g) == (3, 16) else [0, 0])
        assert stats == quantize_model(alone, type(fake)("full"), uniform(alone, q, g), windows)
        assert torch.equal(model(token_ids()).logits, alone(token_ids()).logits)


@pytest.mark.parametrize(("lost", "passes"), [([0], [1, 0]), ([1], [1, 1]), ([0, 1], [1, 1])])
def test_what_was_not_seen_is_made_up_for(lost, passes, tmp_path):
    store, windows = StatsStore(tmp_path / "id"), token_ids(4, 16)
    found = []
    for again in (False, True):
        if again:
            for index in lost:
                (tmp_path / "id" / f"inputs-{index:04}.safetensors").unlink()
        model, fake = make("gpt-neo"), Fake("full")
        count = forwards(model)
        quantize_model(model, fake, uniform(model, 3, 16), windows, seen=store)
        found.append((fake.seen, weights_of(model)))
    assert count == passes
    assert same_stats(found[0][0], found[1][0])
    assert all(map(torch.equal, found[0][1], found[1][1]))
    assert all(store.has(index) for index in (0, 1))


# ---- going on after a kill ----


@pytest.mark.parametrize("stop", [0, 5, 6, 9])
@pytest.mark.parametrize(
    "method",
    [
        Fake("quantized", True, target="stream"),
        Fake("quantized", False),
        Fake("full"),
        FakeScaling(),
    ],
)
def test_a_killed_run_goes_on_where_it_was(method, stop, tmp_path):
    """OPT, of 6 layers a block, before the first and behind a block; LLaMA, of 7, inside of either block."""
    name = ("opt", "llama-1")[stop % 2]
    windows, kept, seen = (
        token_ids(4, 16),
        BlockStore(tmp_path / "blocks"),
        StatsStore(tmp_path / "seen"),
    )

    def run(model, fake, **stores):
        return quantize_model(model, fake, uniform(model, 3, 16), windows, **stores)

    def fresh(**fields):
        return dataclasses.replace(method, seen=[], quantized=0, **fields)

    straight, again = make(name), make(name)
    expected = run(straight, fresh())
    with pytest.raises(KeyboardInterrupt):
        run(make(name), fresh(stop_after=stop), kept=kept, seen=seen)
    fake, layers = fresh(), len(family_of(again.config).linears)
    assert run(again, fake, kept=kept, seen=seen) == expected
    assert fake.quantized == 2 * layers - stop // layers * layers
    assert straight.state_dict().keys() == again.state_dict().keys()
    assert all(map(torch.equal, straight.state_dict().values(), again.state_dict().values()))
    assert torch.equal(straight(token_ids()).logits, again(token_ids()).logits)
    once_more = fresh()
    assert run(make(name), once_more, kept=kept, seen=seen) == expected
    assert once_more.quantized == 0


KILLED = """
import os, signal
from lutlab.quantizers.gptq import GPTQ
calls, quantize = [], GPTQ.quantize
def killing(*arguments):
    calls.append(1)
    if len(calls) == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return quantize(*arguments)
GPTQ.quantize = killing
from lutlab.experiment.run.main import main
main()
"""


def test_a_command_that_was_killed_goes_on(command, monkeypatch, tmp_path):
    """Killed in the second of two blocks of six layers: the first is not touched again, the files are the same."""
    make("opt").save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "data" / "wikitext2").mkdir(parents=True)
    (tmp_path / "data" / "wikitext2" / "wiki.train.raw").write_text(" the cat and the end \n" * 20)
    arguments = (
        "method=gptq", "model=folder", f"model.id={tmp_path / 'model'}", "q=3", "g=16", "logger=none",
        f"data.root={tmp_path / 'data'}", "calibration.text=wikitext2-train", "calibration.samples=2",
        "evaluate=[weight_error]",
    )  # fmt: skip
    killed = warm.run(KILLED, *arguments, f"results={command.results}", cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (block,) = command.results.glob("quantized/*/block-*.safetensors")
    written, calls, quantize = block.stat().st_mtime_ns, [], GPTQ.quantize
    monkeypatch.setattr(GPTQ, "quantize", lambda *a: (calls.append(1), quantize(*a))[1])

    def run():
        calls.clear()
        assert command(*arguments).code == 0
        files = {path.name: path.read_bytes() for path in block.parent.iterdir()}
        return len(calls), files, [(r["values"], r["samples"]) for r in command.records().values()]

    resumed = run()
    assert block.stat().st_mtime_ns == written
    shutil.rmtree(command.results)
    straight = run()
    assert (resumed[0], straight[0]) == (6, 12)
    assert resumed[1:] == straight[1:]
    assert len(straight[1]) == 2
