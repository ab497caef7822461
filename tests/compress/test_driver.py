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
from tests.compress.passes import inputs_of, quantized, weights_of
from tests.models.architectures import CONFIGS, DIFFERENT, make, token_ids, uniform
from tests.quantizers.weights import assert_same
from tests.tiny_models import byte_tokenizer

from lutlab.base.errors import LutlabError
from lutlab.base.tensors import CalibStats
from lutlab.compress import driver
from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import BlockStore, StatsStore
from lutlab.formats import pack
from lutlab.models.families import decoder_blocks, family_of, linear_layers, weight_of
from lutlab.modules import QuantLinear
from lutlab.quantizers.awq import AWQ
from lutlab.quantizers.contract import make_method
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.rtn import RTN

FIELDS = ("squared_error", "squared_norm", "output_error", "output_norm")


@pytest.mark.parametrize("name", ["opt", "gpt2"])
@pytest.mark.parametrize("method", ["rtn", "bcq"])
def test_statistics_are_those_of_the_layers(name, method):
    before, windows = weights_of(make(name)), token_ids(4, 16)
    seen = stats_by_hooks(make(name), before, windows, batch=4)
    model, stats = quantized(name, make_method(method), windows)
    assert [layer.name for layer in stats] == list(before)
    for layer, (_, module) in zip(stats, linear_layers(model), strict=True):
        weight, hessian = before[layer.name].double(), seen[layer.name].hessian.double()
        packed = pack(make_method(method).quantize(weight, 3, 16))
        error = weight - packed.dequantize()
        assert isinstance(module, QuantLinear)
        assert (layer.out_features, layer.in_features) == tuple(weight.shape)
        squares = [w.norm().item() ** 2 for w in (error, weight)]
        assert [layer.squared_error, layer.squared_norm] == pytest.approx(squares, rel=1e-9)
        outputs = [((w @ hessian) * w).sum().item() for w in (error, weight)]
        assert [layer.output_error, layer.output_norm] == pytest.approx(outputs, rel=1e-5)
        assert layer.bits_stored == packed.bits_stored == module.packed.bits_stored
        assert 0 < layer.squared_error < layer.squared_norm


@pytest.mark.parametrize("name", ["opt", "gpt2"])
def test_none_rounds_weights_to_half_precision(name):
    before = weights_of(make(name))
    model, stats = quantized(name, make_method("none"), q=16, g=-1)
    assert_same(weights_of(model), {path: weight.half().float() for path, weight in before.items()})
    for layer, weight in zip(stats, before.values(), strict=True):
        error = (weight.half().double() - weight.double()).square().sum().item()
        assert 0 < layer.squared_error == pytest.approx(error)
        assert layer.bits_stored == 16 * weight.numel()


def test_a_model_in_half_precision_is_quantized_from_its_own_weights():
    model, rounded = make("opt").half(), make("opt").half().float()
    stats = [quantize_model(each, RTN(), uniform(each, 4, 16)) for each in (model, rounded)]
    assert stats[0] == stats[1]
    logits, expected = model(token_ids()).logits, rounded(token_ids()).logits
    assert logits.dtype == torch.float16
    torch.testing.assert_close(logits.float(), expected, atol=0.2, rtol=0.05)


@pytest.mark.parametrize(("method", "windows"), [(RTN(), None), (AWQ(), token_ids())])
def test_quantizing_twice_is_refused_before_anything_is_changed(method, windows):
    model, _ = quantized("opt", RTN())
    logits = model(token_ids()).logits
    message = r"^model\.decoder\.layers\.0\.self_attn\.q_proj is quantized already; load the model"
    with pytest.raises(LutlabError, match=message):
        quantize_model(model, method, uniform(model, 4, 16), windows)
    assert torch.equal(model(token_ids()).logits, logits)


@pytest.mark.parametrize("method", ["none", "rtn", "bcq"])
def test_an_error_names_the_layer(method):
    model = make("opt")
    model.model.decoder.layers[1].fc2.weight.data[3, 4] = float("nan")
    with pytest.raises(LutlabError, match=r"^model\.decoder\.layers\.1\.fc2: 1 of 1536 weights"):
        quantize_model(model, make_method(method), uniform(model, 4, 16))


# ---- whose activations a calibrated method sees, against whole forward passes ----


def stats_by_hooks(model, layers, windows, batch=2):
    """Hessian, mean |x| and tokens of the inputs of some layers."""
    stats = {}
    for name, seen in inputs_of(model, windows, layers, batch).items():
        hessian, absolute, tokens = torch.zeros(seen[0].shape[-1], seen[0].shape[-1]), 0, 0
        for x in seen:
            hessian.addmm_(x.T, x)
            absolute, tokens = absolute + x.abs().sum(0), tokens + len(x)
        stats[name] = CalibStats(hessian / tokens, absolute / tokens, tokens)
    return stats


def quantized_by_hand(model, fake, q, g, windows):
    """The model and the order of things as the papers write them: a full pass before every replacement."""
    family = family_of(model.config)
    full = stats_by_hooks(model, weights_of(model), windows)
    for index in range(len(decoder_blocks(model))):
        path = f"{family.blocks}.{index}."
        rounds = [[shared] for shared in family.inputs] if fake.true_sequential else [family.inputs]
        for shared_inputs in rounds:
            names = [path + shared.layers[0] for shared in shared_inputs]
            now = full if fake.inputs == "full" else stats_by_hooks(model, names, windows)
            for shared in shared_inputs:
                prepared = fake.prepare(now[path + shared.layers[0]])
                for layer in shared.layers:
                    module = model.get_submodule(path + layer)
                    packed = pack(fake.quantize(weight_of(module), q, g, prepared))
                    model.set_submodule(path + layer, QuantLinear(packed, module.bias))


def assert_same_seen(fake, other):
    assert_same([vars(stats) for stats in fake.seen], [vars(stats) for stats in other.seen])


WAYS = (("quantized", True), ("quantized", False), ("full", False))


@pytest.mark.parametrize(("name", "way"), [(name, WAYS[at % 3]) for at, name in enumerate(CONFIGS)])
def test_inputs_are_those_of_whole_forward_passes(name, way, two_windows_a_batch):
    fake, other, by_hand, windows = Fake(*way), Fake(*way), make(name), token_ids(4, 16)
    model, _ = quantized(name, fake, windows)
    quantized_by_hand(by_hand, other, 3, 16, windows)
    assert_same_seen(fake, other)
    assert_same(weights_of(model), weights_of(by_hand))
    assert torch.equal(model(token_ids()).logits, by_hand(token_ids()).logits)


def test_the_three_ways_differ():
    """Else the test above would prove nothing."""
    fakes = [Fake(*way) for way in WAYS]
    for fake in fakes:
        quantized("opt", fake, token_ids(4, 16))
    means = [torch.cat([stats.mean_abs for stats in fake.seen]) for fake in fakes]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(means, 2))


def test_sums_over_chunks_of_rows_are_the_sums(monkeypatch):
    _, whole = quantized("opt", RTN(), token_ids())
    monkeypatch.setattr(driver, "_CHUNK_WEIGHTS", 33)
    _, parts = quantized("opt", RTN(), token_ids())
    for layer, other in zip(parts, whole, strict=True):
        sums, expected = ([getattr(stats, field) for field in FIELDS] for stats in (layer, other))
        assert sums == pytest.approx(expected, rel=1e-6)


def test_a_calibrated_method_without_calibration_is_refused():
    with pytest.raises(LutlabError, match=r"looks at activations: give calibration="):
        quantized("opt", Fake())


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
        model, store = make(name), StatsStore(tmp_path / "id")
        passes = forwards(model)
        stats = quantize_model(model, fake, uniform(model, q, g), windows, seen=store)
        assert passes == ([1, 1] if (q, g) == (3, 16) else [0, 0])
        alone, expected = quantized(name, type(fake)("full"), windows, q, g)
        assert stats == expected
        assert torch.equal(model(token_ids()).logits, alone(token_ids()).logits)


@pytest.mark.parametrize(("lost", "passes"), [([0], [1, 0]), ([1], [1, 1]), ([0, 1], [1, 1])])
def test_what_was_not_seen_is_made_up_for(lost, passes, tmp_path):
    store, windows, first, fake = StatsStore(tmp_path), token_ids(4, 16), Fake("full"), Fake("full")
    straight, _ = quantized("gpt-neo", first, windows, seen=store)
    for index in lost:
        (tmp_path / f"inputs-{index:04}.safetensors").unlink()
    model = make("gpt-neo")
    count = forwards(model)
    quantize_model(model, fake, uniform(model, 3, 16), windows, seen=store)
    assert count == passes
    assert_same_seen(fake, first)
    assert_same(weights_of(model), weights_of(straight))
    assert all(store.has(index) for index in (0, 1))


# ---- going on after a kill ----


@pytest.mark.parametrize("stop", [0, 5, 6, 9])
@pytest.mark.parametrize("method", [
    Fake("quantized", True, target="stream"), Fake("quantized", False), Fake("full"), FakeScaling(),
])  # fmt: skip
def test_a_killed_run_goes_on_where_it_was(method, stop, tmp_path):
    """OPT, of 6 layers a block, before the first and behind a block; LLaMA, of 7, inside of either block."""
    name, windows = ("opt", "llama-1")[stop % 2], token_ids(4, 16)
    stores = {"kept": BlockStore(tmp_path / "blocks"), "seen": StatsStore(tmp_path / "seen")}

    def fresh(**fields):
        return dataclasses.replace(method, seen=[], quantized=0, **fields)

    straight, expected = quantized(name, fresh(), windows)
    with pytest.raises(KeyboardInterrupt):
        quantized(name, fresh(stop_after=stop), windows, **stores)
    layers = len(family_of(straight.config).linears)
    for calls in (2 * layers - stop // layers * layers, 0):
        fake = fresh()
        again, stats = quantized(name, fake, windows, **stores)
        assert (stats, fake.quantized) == (expected, calls)
        assert_same(again.state_dict(), straight.state_dict())
        assert torch.equal(straight(token_ids()).logits, again(token_ids()).logits)


@pytest.mark.parametrize(
    "options", [{"target": "stream", "true_sequential": True}, {"hessian": "gradients"}], ids=str
)
def test_what_is_quantized_already_asks_the_method_nothing(options, monkeypatch, tmp_path):
    """Packed layers, as after tuning, have the errors that the method's had; kept blocks do not read a window."""
    method, windows, store = GPTQ(**options), token_ids(4, 16), BlockStore(tmp_path / "id")
    model, stats = quantized("opt", method, windows, kept=store)
    packed = {name: layer.packed for name, layer in linear_layers(model)}
    monkeypatch.setattr(GPTQ, "prepare", None)
    monkeypatch.setattr(GPTQ, "quantize", None)
    monkeypatch.setattr(driver, "Beside", None)
    monkeypatch.setattr(driver, "token_weights", None)
    given, again = quantized("opt", method, windows, packed=packed)
    assert_same(given.state_dict(), model.state_dict())
    for field in FIELDS:
        values = [[getattr(layer, field) for layer in layers] for layers in (again, stats)]
        assert values[0] == pytest.approx(values[1], rel=1e-5)
    monkeypatch.setattr(driver, "capture", None)
    assert quantized("opt", method, windows, kept=store)[1] == stats


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
        records = command.records().values()
        timed = ["quantize_seconds" in record["facts"] for record in records]
        return (len(calls), timed), files, [(r["values"], r["samples"]) for r in records]

    resumed = run()
    assert block.stat().st_mtime_ns == written
    shutil.rmtree(command.results)
    straight = run()
    assert (resumed[0], straight[0]) == ((6, [False]), (12, [True]))
    assert resumed[1:] == straight[1:]
    assert len(straight[1]) == 2
