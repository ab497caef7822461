"""Golden cells: of each component one small number, to the last bit, that shows whether a change of its source matters.

    method    tensors of a weight [16, 96] at two (q, g)         driver    a tiny OPT, by GPTQ and AWQ
    format    buffers of a tensor, and what they dequantize to   search    its widths under a budget
    synthetic a tiny OPT, drawn as four methods store it
    protocol  token ids of a few rows                            models    weights as loaded and as drawn
    evaluator values on an embedded model                        tuning    its layers after two steps
    checkpoint weights [32, 64] out of words of each layout

Inputs are drawn as whole numbers and scaled by powers of two, exact everywhere. What is computed with them is not: the
cells are made in a process of its own, of one thread and without the instruction sets that machines differ in (PINNED),
and MADE_WITH says where they can be compared. Kernels, timers, evaluators of speeds and methods that call another
library have none.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from lutlab.base import children, registry, second_order
from lutlab.base.lazy import torch, transformers
from lutlab.base.specs import (
    MNLI_LABELS,
    LayerStats,
    Loss,
    ModelRun,
    ModelSpec,
    Subject,
    Sublayer,
    Text,
    Tuning,
)
from lutlab.base.tensors import (
    BCQTensor,
    BlocksTensor,
    CalibStats,
    DenseTensor,
    MixedTensor,
    SecondOrderTensor,
    UniformSecondOrderTensor,
    UniformTensor,
)
from lutlab.compress.widths import widths
from lutlab.data import pairs
from lutlab.data.choices import choice_row
from lutlab.data.pairs import SCORED, Pair, labelled_pairs
from lutlab.data.protocols import protocol
from lutlab.experiment.store.components import every_name
from lutlab.experiment.store.provenance import cpu_name, libraries
from lutlab.models.contract import CLASSIFIES
from lutlab.models.families import evaluation_seqlen, kinds
from lutlab.models.load import LoadedModel, embedded_names, load_model
from lutlab.quantizers.contract import Calibrated, Rescaling, make_method

# torch, MKL and oneDNN compute as on a machine without AVX; without a C compiler torch multiplies.
PINNED = {
    "OMP_NUM_THREADS": "1",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "CUDA_VISIBLE_DEVICES": "",
    "LUTLAB_CC": "no-compiler",
}
WIDTHS = ((3, 32), (4, -1))
MODEL = ModelSpec("opt-embedded-s", "embedded", "opt-embedded-s")
LARGER = ModelSpec("opt-embedded-m", "embedded", "opt-embedded-m")
ENCODER = ModelSpec("bert-embedded-s", "embedded", "bert-embedded-s")
SENTENCE = (
    "the table of a kernel holds sums of eight inputs for every pattern of signs, so that a byte of the weight is read "
    "once and adds eight products; a scale for each group follows, and what remains is rounding."
)


def made_with() -> dict[str, str]:
    """Conditions under which golden cells can be compared: processor's architecture and vendor, and libraries.

    The vendor, since LAPACK and BLAS choose kernels by it, whatever is PINNED.
    """
    vendor = cpu_name(Path("/proc/cpuinfo")).split()[0]
    return {"machine": f"{platform.machine()} {vendor}", **libraries("transformers")}


def golden_cells() -> dict[str, str]:
    """Component -> 16 hex digits, of all components that have a golden cell, made in a process of its own."""
    # An empty cache: no library that a compiler built before.
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            children.python(f"from {__name__} import print_cells; print_cells()"),
            env={**os.environ, **PINNED, "LUTLAB_CACHE": cache},
            stdout=subprocess.PIPE,
            check=True,
        )  # fmt: skip
    return json.loads(done.stdout)


def print_cells() -> None:
    """The work of that process: component -> digits, as JSON."""
    cells = {name: _hash(make()) for name in every_name() if (make := _maker(name))}
    json.dump(cells, sys.stdout)


def _maker(name: str) -> Callable[[], Any] | None:
    """Maker of a component's golden cell; None: it has none."""
    group, _, key = name.partition("/")
    if group == "evaluator" and registry.lookup(group, key).of_this_machine:
        return None
    if group == "method" and registry.lookup(group, key).libraries:
        return None  # their code decides it, which need not be here
    if name == "method/stored":
        return _checkpoint  # it quantizes nothing
    makers = {"method": _method, "format": _format, "evaluator": _evaluator, "protocol": _protocol}
    if group in makers:
        return lambda: makers[group](key)
    rest = {
        "driver": _driver,
        "search": _search,
        "tuning": lambda: [_tuned("mixed_2_4_16", loss=loss) for loss in get_args(Loss)],
        "tuning/scales": lambda: [
            _tuned(name, trains="scales", learning_rate=1e-3) for name in ("rtn", "gptq_bcq")
        ],
        "tuning/blocks": lambda: [
            _tuned(name, steps=0, block_steps=2) for name in ("rtn", "gptq_bcq")
        ],
        "tuning/whole": lambda: [_tuned("none", loss="labels")],
        "tuning/labels": _tuned_labels,
        "models": _models,
        "synthetic": _synthetic,
        "checkpoint": _checkpoint,
    }
    return rest.get(name)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(_said(value)).encode()).hexdigest()[:16]


def _said(value: Any) -> Any:
    """Bits of everything, in JSON's types; as in ids, a field at its default is left out, so that one can be added."""
    if isinstance(value, torch.Tensor):
        data = hashlib.sha256(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return [str(value.dtype), list(value.shape), data.hexdigest()]
    if dataclasses.is_dataclass(value):
        held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        at_default = {f.name for f in dataclasses.fields(value) if held[f.name] is f.default}
        return [_said(one) for name, one in held.items() if name not in at_default]
    if isinstance(value, dict):
        return [[str(key), _said(one)] for key, one in value.items()]
    if isinstance(value, list | tuple):
        return [_said(one) for one in value]
    return value.hex() if isinstance(value, float) else repr(value)


# ---- inputs: drawn weights that are exact, a few rows of text, tiny models ----


def drawn(*shape: int, seed: int, scale: float = 2**-12) -> torch.Tensor:
    """Float32, of the bell's shape, exact: sums of four whole numbers below 2^11."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**11), 2**11, (4, *shape), generator=generator).sum(0).float() * scale


def sentences(count: int) -> tuple[str, ...]:
    """The sentence, begun at each of its words."""
    words = SENTENCE.split()
    return tuple(" ".join(words[i:] + words[:i]) for i in range(count))


def text_of(name: str) -> Text:
    """A few rows under a protocol, read from nowhere."""
    rows = sentences(12)
    if protocol(name).kind == "choices":
        rows = tuple(
            choice_row((rows[i], rows[-i]), rows[i].partition(" ")[0], i % 2) for i in range(4)
        )
    elif protocol(name).kind.endswith("pairs"):
        rows = tuple(Pair(row, rows[-i], i % 3).row() for i, row in enumerate(rows))
    return Text(name, rows, "", "golden.py")


def embedded(spec: ModelSpec = MODEL) -> LoadedModel:
    """An embedded model in float32."""
    return load_model(spec, torch.float32, "cpu", 0)


def tiny_opt() -> Any:
    """OPT of 2 blocks, hidden 32, whose weights are exact."""
    config = transformers.OPTConfig(
        vocab_size=64, hidden_size=32, word_embed_proj_dim=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=32, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return exact(transformers.OPTForCausalLM(config))


def classifier(labels: int) -> Any:
    """BERT of 2 blocks with a head for pairs, whose weights are exact."""
    config = transformers.BertConfig(
        vocab_size=2048, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_labels=labels,
    )  # fmt: skip
    return exact(transformers.BertForSequenceClassification(config))


def exact(model: Any) -> Any:
    """The model with drawn weights."""
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=seed))
    return model.eval()


def windows() -> torch.Tensor:
    """Calibration windows: token ids [4, 16]."""
    return torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(0))


def mixed(weight: torch.Tensor, **options: Any) -> Any:
    """Groups of 4 and 2 bits with outliers, of either layout."""
    method = make_method("mixed_2_4_16", outliers=0.01, **options)
    widths = torch.tensor((4, 2, 2, 2, 4, 2), dtype=torch.uint8)
    return method.round_to(weight, widths, 16)


# ---- cells ----


def _method(name: str) -> Any:
    method = make_method(name)
    if not method.quantizes:
        return method.quantize(drawn(16, 96, seed=0), 16, -1)
    weight, x = (
        drawn(16, 96, seed=0),
        drawn(128, 96, seed=1, scale=2**-8).round() / 16,
    )
    stats = CalibStats(x.T @ x / len(x), x.abs().mean(0), len(x))
    more = (method.prepare(stats),) if isinstance(method, Calibrated) else ()
    found = [method.quantize(weight, q, g, *more) for q, g in WIDTHS]
    if isinstance(method, Rescaling):
        found.append(method.scales([weight, weight[:8]], list(WIDTHS), stats))
    return found


def _format(name: str) -> Any:
    weight, groups = drawn(16, 96, seed=0), 3
    codes = (weight * 8).round().clamp(0, 7).to(torch.uint8)
    scale = drawn(4, 16, groups, seed=1).abs() + 2**-6
    tensors = {
        DenseTensor: [DenseTensor(weight), DenseTensor(weight.half())],
        UniformTensor: [
            UniformTensor(codes, scale[0].half(), torch.full((16, groups), zero).short(), 3, 32)
            for zero in (3, -1)
        ],
        BCQTensor: [BCQTensor(codes, scale[:3], offset, 3, 32) for offset in (None, scale[3])],
        SecondOrderTensor: [_second_order(codes, scale[:p]) for p in (3, 4)],
        UniformSecondOrderTensor: [_uniform_second_order(codes, scale[:1])],
        MixedTensor: [mixed(weight, **options) for options in ({}, {"aligned": False})],
        BlocksTensor: [BlocksTensor(_blocks(scale[0], codes), "Q8_0", 96)],
    }
    cls = registry.lookup("format", name)
    packed = [cls.pack(tensor) for tensor in tensors[cls.tensor]]
    return [[one, one.dequantize(), one.bits_stored] for one in packed]


def _second_order(codes: torch.Tensor, a: torch.Tensor) -> SecondOrderTensor:
    """3 planes with coefficients [P, N, G], a fourth being the offset, on grids of 4 bits."""
    step, zero = second_order.grid(a, 4)
    code = second_order.nearest(a, step, zero, 4)
    return SecondOrderTensor(codes, code, step, zero, 3, 32, 4)


def _uniform_second_order(codes: torch.Tensor, scale: torch.Tensor) -> UniformSecondOrderTensor:
    """3 bits with scales [1, N, G] on grids of 4 bits, and zero points of 3."""
    step, zero = second_order.grid(scale, 4)
    code, points = second_order.nearest(scale, step, zero, 4), torch.full_like(scale[0], 3).short()
    return UniformSecondOrderTensor(codes, code, step, zero, points, 3, 32, 4)


def _blocks(scale: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Blocks of 32 codes [N, K] behind a float16 scale [N, G], its type Q8_0: [N, G * 34] uint8."""
    scales = scale.half().view(torch.uint8).unflatten(1, (-1, 2))
    return torch.cat((scales, codes.unflatten(1, (-1, 32))), dim=2).flatten(1)


def _protocol(name: str) -> Any:
    from lutlab import data

    text, tokenizer = text_of(name), embedded().tokenizer
    made = {
        "stream": lambda: data.token_stream(text, tokenizer, 8),
        "calibration": lambda: data.calibration_windows(text, tokenizer, 3, 8, 0),
        "examples": lambda: data.examples(text),
        "choices": lambda: data.records(text),
        "pairs": lambda: pairs.encoded(tokenizer, pairs.pairs(text), 64),
        "calibration-pairs": lambda: pairs.calibration_pairs(text, tokenizer, 3, 64, 0),
    }
    return made[protocol(name).kind]()


def _evaluator(name: str) -> Any:
    cls = registry.lookup("evaluator", name)
    spec = ENCODER if cls.task == "masked_lm" else MODEL
    loaded = embedded(spec)
    model = loaded.model
    if cls.task == CLASSIFIES:
        model = classifier(1 if cls.golden in SCORED else len(MNLI_LABELS))
    layers = tuple(
        LayerStats(
            *(f"layer {n}", 32, 96, 0.5 * n, 8.0 + n, 16_000, 4, g, "uniform", 20_000),
            *(0.25 * n, 4.0 + n),
        )
        for n, g in ((1, 32), (2, -1))
    )
    text = text_of(cls.golden) if cls.golden else None
    origin = LARGER if name == "kld" else spec  # of its own full-precision model it would say 0
    subject = Subject(model, loaded.tokenizer, layers, text, 64, ModelRun(origin, "rtn", 4, 32))
    found = cls().measure(subject)
    return [found.values, found.n, found.samples]


def _driver() -> Any:
    from lutlab.compress.driver import quantize_model

    found = []
    for name in ("rtn", "gptq", "awq"):
        model = tiny_opt()
        chosen = widths(
            kinds(model.config), 3, 16, (Sublayer("attention", 4, -1),), ("*.1.self_attn.k_proj",)
        )
        layers = quantize_model(model, make_method(name), chosen, windows())
        found.append([layers, model.state_dict()])
    return found


def _search() -> Any:
    from lutlab.compress.search import search_widths

    method, candidates = make_method("rtn"), [(2, -1), (3, 16), (4, -1)]
    return search_widths(tiny_opt(), method, candidates, 5.0, windows())


def _tuned_labels() -> Any:
    """Losses of a classifier's pairs, and the names of what is trained of its head."""
    from lutlab.tuning.losses import Labelled, head_parameters, loss

    loaded = embedded(dataclasses.replace(MODEL, task=CLASSIFIES))
    text = text_of("missing-word-train")
    samples = Labelled(*labelled_pairs(text, loaded.tokenizer, 12, 64, 0))
    with torch.no_grad():
        losses = [loss(loaded.model, loaded.model, kind, samples) for kind in get_args(Loss)]
    return [losses, list(head_parameters(loaded.model))]


def _tuned(method: str, **options: Any) -> Any:
    """Layers after two steps, with the options and losses, but without the curve of the steps."""
    from lutlab.tuning.stages import tune

    model = tiny_opt()
    chosen = widths(kinds(model.config), 3, 8)
    tuning = Tuning(**{"steps": 2} | options)
    ids = windows()
    layers, rest, facts = tune(model, make_method(method), chosen, ids, ids, tuning)
    curves = facts.get("blocks", [facts])
    judged = [{name: curve[name] for name in ("held_out", "kept_step")} for curve in curves]
    whole = [rest] if rest else []
    return [layers, *whole, *(tuning.recorded() | one for one in judged)]


def _models() -> Any:
    found = []
    # The encoder came later, and has its cells in masked_lm and glue: without it this one is what it was before.
    for name in embedded_names():
        if name == ENCODER.id:
            continue
        cut = ModelSpec(name, "synthetic", name, layers=1)
        for spec in (cut, ModelSpec(name, "embedded", name)):
            model = load_model(spec, torch.float32, "cpu", 0).model
            config = model.config
            found.append([model.state_dict(), kinds(config), evaluation_seqlen(config)])
    return found


def _synthetic() -> Any:
    from lutlab.compress.synthetic import synthetic

    config, found = tiny_opt().config, []
    for method, q, g in (
        ("rtn", 3, 16),
        ("bcq", 2, -1),
        ("mixed_2_4_16", 2.5, 16),
        ("none", 16, -1),
    ):
        found.append(synthetic(config, method, q, g).state_dict())
    return found


def _checkpoint() -> Any:
    from lutlab.checkpoint.foreign.reading import layout_of

    def words(*shape: int) -> torch.Tensor:
        return (drawn(*shape, seed=0) * 2**12).to(torch.int32) * 0x01234567

    rows, columns, groups = 32, 64, 2
    scales = drawn(groups, rows, seed=1).half()
    gptq = {"qweight": words(8, rows), "qzeros": words(groups, 4), "scales": scales}
    gptq["g_idx"] = torch.arange(columns, dtype=torch.int32) % groups
    awq = {"qweight": words(columns, 4), "qzeros": words(groups, 4), "scales": scales}
    packed = {"weight_packed": words(rows, 8), "weight_scale": scales.T}
    packed |= {"weight_zero_point": words(4, groups), "weight_shape": torch.tensor([rows, columns])}
    scheme = {"config_groups": {"0": {"weights": {"num_bits": 4, "group_size": 32}}}}
    asked = [
        ({"quant_method": "gptq", "checkpoint_format": "gptq_v2"}, gptq),
        ({"quant_method": "gptq", "meta": {"quantizer": ["gptqmodel:1"]}}, gptq),
        ({"quant_method": "awq"}, awq),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized", **scheme}, packed),
    ]
    return [layout_of(config).read(tensors, rows, columns) for config, tensors in asked]
