"""The Python API: functions that need neither Hydra nor Weights & Biases.

    import lutlab
    packed = lutlab.quantize_tensor(weight, method="bcq", q=3, g=128)   # weight [N, K]
    packed.dequantize(), packed.bits_per_weight
    lutlab.quantize(model, method="rtn", q=4, g=32)                     # in place
    tuning = lutlab.Tuning(steps=100)                                   # quantize(…, "mixed_2_4_16", tuning=tuning)
    lutlab.perplexity(model, tokenizer, text, seqlen=2048)              # GPTQ protocol
    lutlab.lambada(model, tokenizer, ["... the last word"])
    lutlab.save(model, folder / "rtn", tokenizer)                       # a transformers folder, bit for bit
    model = lutlab.load(folder / "rtn")
    lutlab.save_adapter(model, folder / "mnli")                         # scales and head alone, over the same planes
    model = lutlab.load_adapter(model, folder / "mnli")
    lutlab.export_gptq(model, folder / "gptq")                          # layouts of others, for uniform codes
    lutlab.export_compressed_tensors(model, folder / "compressed")
    lutlab.export_gguf(model, folder / "model.gguf", tokenizer)         # llama.cpp's file, of LLaMA models
    lutlab.complete(model, tokenizer, "to be", tokens=9)                # the text goes on; lutlab.stream(…), by letters
    lutlab.engine(model, batch=1, length=512)                           # a cache, and a token a call
    lutlab.synthetic("opt-embedded-s", method="bcq", q=3, g=128)        # drawn as it is stored: a model of any size
    lutlab.predict_latency("opt-175b", q=3, gpu="A100-80GB").ms_per_token   # of what nobody runs here
    lutlab.predict_memory("opt-175b", q=3).total, lutlab.predict_gpus("opt-175b", gpu="A100-80GB")

Calibrated methods (`gptq`, `hessian_uniform`, `gptq_bcq`, `hessian_bcq`, `awq`, `mixed_2_4_16`, `group_widths`) take
`calibration=<token ids>`; without it a language model writes a text of its own first (generate/own.py):
`lutlab.quantize(model, method="hessian_bcq", q=3, g=128)`.

A mistake is a LutlabError, whose message says what to do.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from lutlab import recipe
from lutlab.base import arguments, registry
from lutlab.base.errors import OTHER_NAMES, LutlabError, arguments_of, nearest
from lutlab.base.groups import CANDIDATE_BITS, CANDIDATE_GROUP_SIZES, Bits, Width
from lutlab.base.specs import LayerWidth, TextSpec, Tuning
from lutlab.checkpoint.transformers import declare
from lutlab.compress.calibrate import Windows, check_windows, stats_of
from lutlab.compress.widths import layer_widths
from lutlab.data import calibration_inputs, load_text
from lutlab.embeddings import quantize_embeddings
from lutlab.formats import pack
from lutlab.formats.contract import Format
from lutlab.generate import own
from lutlab.models.families import decoder_blocks, evaluation_seqlen, task_of
from lutlab.models.pretrained import tokenizer_of
from lutlab.quantizers.coefficients import quantized
from lutlab.quantizers.contract import Calibrated, Method, make_method
from lutlab.tuning.losses import Labelled
from lutlab.tuning.stages import check_tunable

log = logging.getLogger(__name__)
# What quantize calibrates on where it is given nothing, and the model, of masked tokens, writes no text: one that is
# present with every Python.
DEFAULT_TEXT = TextSpec("pydocs-train", "embedded")
DEFAULT_SAMPLES, DEFAULT_SEQLEN = 32, 512


def quantize_tensor(
    weight: torch.Tensor,
    method: str = "bcq",
    q: Bits = 3,
    g: int = 128,
    inputs: torch.Tensor | None = None,
    **options: Any,
) -> Format:
    """Quantize one weight matrix.

    Examples:
        >>> packed = quantize_tensor(torch.ones(2, 128), method="rtn", q=4, g=32)
        >>> packed.dequantize().shape, packed.bits_per_weight
        (torch.Size([2, 128]), 4.625)
        >>> packed.to_bcq().bits_per_weight
        7.0

        4 bits of codes, and a group of 32 stores a 16-bit scale and a 4-bit zero point: 4 + 20 / 32. In the binary form
        of Eq. 5, which the LUT kernel reads, it stores four 16-bit alphas and a 32-bit offset: 4 + 96 / 32.

    Args:
        weight: [N, K] floating point; K are the input channels, along which groups run.
        method: `none`, `rtn`, `bcq`, `gptq`, `hessian_uniform`, `gptq_bcq`, `hessian_bcq`, `awq`, `mixed_2_4_16`,
            `group_widths`, `ggml` or `ggml_imatrix`.
        q: bits, 1-8; of `mixed_2_4_16` the mean width of codes, 2 to 4: 2.5 is a quarter of the groups at 4 bits.
            The types of `ggml` decide q and g.
        g: weights that share a scale, at least 8, or -1 for one scale a row; the last group may be shorter.
        inputs: [M, K], what the layer reads on calibration text; only for methods that look at it (`gptq`,
            `hessian_uniform`, `gptq_bcq`, `hessian_bcq`, `awq`, `ggml_imatrix`).
        **options: parameters of the method, e.g. `variant="awq"` of `rtn`.

    Returns:
        The packed weight in the method's own format: `.dequantize()` gives [N, K] float32, `.bits_per_weight` counts
        every stored buffer, `.to_bcq()` is the binary form of uniform codes.

    Raises:
        LutlabError: q, g, method or a parameter is out of range, the weight is not a finite matrix, or empty, or the
            inputs are missing, not finite, or not [M, K].
    """
    weight = arguments.matrix("weight", weight, "[N, K]")
    _check_options(method, options, _TENSOR_ARGUMENTS)
    quantizer = make_method(method, **options)
    _check_width(quantizer, q, g)
    if inputs is not None:
        inputs = arguments.matrix("inputs", inputs, f"[M, {weight.shape[1]}]")
    if not isinstance(quantizer, Calibrated):
        return pack(quantized(quantizer, weight, q, g)[0])
    # Nothing is before one weight whose errors it could make up for: every target is the weight itself.
    if quantizer.hessian != "inputs":
        raise LutlabError(
            f"hessian={quantizer.hessian}: the end loss is of a model, and this is one weight: use hessian=inputs, or "
            "quantize a model"
        )
    if inputs is None or inputs.shape[1] != weight.shape[1] or inputs.device != weight.device:
        got = None if inputs is None else f"{list(inputs.shape)} on {inputs.device}"
        raise LutlabError(
            f"method '{method}' needs inputs=[M, {weight.shape[1]}], what the layer reads on calibration text, on "
            f"{weight.device}; got {got}"
        )
    return pack(quantized(quantizer, weight, q, g, quantizer.prepare(stats_of(inputs)))[0])


def quantize(
    model: PreTrainedModel,
    method: str = "rtn",
    q: Bits = 4,
    g: int = 128,
    *,
    calibration: Windows | None = None,
    skip: Sequence[str] = (),
    layers: Mapping[str, Width] | None = None,
    budget: float | None = None,
    candidates: Sequence[Width] | None = None,
    tuning: Tuning | None = None,
    labels: torch.Tensor | None = None,
    embeddings: int | None = None,
    **options: Any,
) -> PreTrainedModel:
    """Quantize the linear layers of every decoder block, in place; embeddings and head stay as they are, unless told.

    Args:
        model: a transformers causal language model of a known family (OPT, LLaMA, GPT-2, GPT-Neo), or a BERT for
            masked tokens or for classification.
        method: the method's name, one of those that quantize_tensor takes.
        q: bits a weight, 1-8; see quantize_tensor.
        g: weights that share a scale, at least 8, or -1 for one scale a row; see quantize_tensor.
        calibration: token ids [samples, S] int64, for methods that look at activations and for a budget; for a
            classifier, what a tokenizer returns for padded texts of its task. None: 128 windows of Python's
            documentation (a log line says so), tokenized by the tokenizer beside the model's files.
        skip: patterns (fnmatch) of layer names that stay in full precision, e.g. `*.fc2`.
        layers: patterns (fnmatch) of layer names -> (q, g) of their own, e.g. `{"*.layers.0.*": (4, 16)}`; where
            several fit, the last one counts, and `skip` goes over all.
        budget: stored bits a weight that all layers together must not exceed; every layer then has a width of its own,
            chosen from `candidates` for the least loss on the calibration text (compress/search.py), and q and g are
            not looked at. Takes the memory of a second copy of the model.
        candidates: (q, g) that a layer may have under a budget. None: 2 to 5 bits in groups of 32, 64, 128 and a row.
        tuning: `lutlab.Tuning(steps=…)`: fine-tune the weights for their stored form on the calibration windows, under
            methods whose groups differ in width; or with `trains="scales"` the scales of binary or uniform codes, which
            stay (tuning/). With `samples=N` the last N windows are trained on, and the method calibrates on those
            before them. Takes the memory of a float32 copy of the model and of Adam's state.
        labels: [samples] int64, the class of each text of `calibration`, which a classifier is tuned on; its head is
            trained too, and stays in full precision.
        embeddings: bits of the table of tokens and of the output head, in symmetric groups of 32; at 8 they are what
            llama.cpp's Q8_0 holds. None: both stay as they are.
        **options: parameters of the method, e.g. `variant="awq"` of `rtn`.

    Returns:
        The same model, for chaining.

    Raises:
        LutlabError: q, g, method or a parameter is out of range, the architecture is unknown, the model is quantized
            already, a pattern fits no layer, there is no tokenizer to calibrate with, the budget is below the smallest
            size possible or given beside `layers`, or the method cannot be tuned.
    """
    arguments.model(model)
    decoder_blocks(model)  # refuses a model without its head
    _check_options(method, options, _ARGUMENTS)
    quantizer = make_method(method, **options)
    if tuning is not None:
        arguments.instance("tuning", tuning, Tuning, "lutlab.Tuning(steps=…)")
        check_tunable(quantizer, tuning)
    if budget is None:
        _check_width(quantizer, q, g)
    of_layers = _checked_widths(layers, quantizer)
    skip = arguments.strings("skip", skip, 'patterns of layer names, as ["*.fc2"]')
    if of_layers and budget is not None:
        raise LutlabError("budget chooses the widths of all layers: drop layers or the budget")
    candidates = _checked_candidates(budget, candidates, quantizer)
    looks = budget is not None or tuning is not None or isinstance(quantizer, Calibrated)
    if looks and calibration is None:
        calibration = _default_calibration(model)
    if calibration is not None:
        check_windows(model, calibration)
    labelled = None
    if labels is not None:
        if tuning is None or not isinstance(calibration, Mapping):
            raise LutlabError(
                "labels are what tuning trains a classifier on: give tuning=lutlab.Tuning(…) and "
                "calibration=tokenizer(firsts, seconds, padding=True, return_tensors='pt') beside them"
            )
        labelled = Labelled(
            calibration, arguments.instance("labels", labels, torch.Tensor, "a tensor")
        )
    training = model.training
    model.eval()
    try:
        stats, _ = recipe.quantize(
            *(model, quantizer, q, g, calibration),
            labelled=labelled,
            skip=skip,
            layers=of_layers,
            budget=budget,
            candidates=candidates,
            tuning=tuning,
        )
        if embeddings is not None:
            quantize_embeddings(model, embeddings)
    finally:
        model.train(training)
    if embeddings is not None or any(layer.format != "dense" for layer in stats):
        declare(model)  # so that save_pretrained says how to read the layers
    return model


_TENSOR_ARGUMENTS, _ARGUMENTS = arguments_of(quantize_tensor), arguments_of(quantize)


def _check_options(method: str, options: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """Refuse an option that is a misspelled argument of the function itself, or another library's name of one."""
    known = [field.name for field in dataclasses.fields(registry.lookup("method", method))]
    for option in sorted(options.keys() - known):
        meant = OTHER_NAMES.get(option)
        cure = f"it is {meant} here" if meant else nearest(option, [*known, *arguments])
        raise LutlabError(f"method '{method}' has no parameter '{option}': {cure}")


def _check_width(quantizer: Method, q: Bits, g: int) -> None:
    """The arguments q and g: in range, or of a method that keeps weights, at least numbers."""
    if quantizer.quantizes:
        quantizer.check_width(q, g)
    arguments.instance("q", q, (int, float), "the bits of a weight, as 4")
    arguments.instance("g", g, int, "the weights of a group, as 128")


def _checked_widths(
    layers: Mapping[str, Width] | None, quantizer: Method
) -> tuple[LayerWidth, ...]:
    """The argument `layers`, in its order; none where it is None."""
    layers = {} if layers is None else layers
    expected = 'a mapping of patterns of layer names, as {"*.fc1": (4, 16)}'
    for pattern in arguments.instance("layers", layers, Mapping, expected):
        arguments.text("layers, a name of it,", pattern, expected)
    return layer_widths(layers, quantizer)


def _checked_candidates(
    budget: float | None, candidates: Sequence[Width] | None, quantizer: Method
) -> Sequence[Width]:
    """The arguments `budget` and `candidates`; every width where there are none."""
    if budget is not None:
        arguments.instance("budget", budget, (int, float), "a number of stored bits a weight")
    if candidates is None:
        return [*itertools.product(CANDIDATE_BITS, CANDIDATE_GROUP_SIZES)]
    expected = "pairs of q and g, as [(3, 32), (4, 128)]"
    if isinstance(arguments.instance("candidates", candidates, Sequence, expected), str):
        raise LutlabError(f"candidates is {arguments.described(candidates)}: give {expected}")
    for width in candidates:
        if not isinstance(width, list | tuple) or len(width) != 2:
            raise LutlabError(f"candidates holds {width!r}: give {expected}")
        quantizer.check_width(*width)
    return [(q, g) for q, g in candidates]


def _default_calibration(model: PreTrainedModel) -> Windows:
    """Calibration windows of a text that the model writes; of Python's documentation for one of masked tokens."""
    task, source = task_of(model), model.name_or_path or ""
    if task == "sequence_classification":
        raise LutlabError(
            "a classifier is calibrated on texts of its task: give calibration=tokenizer(firsts, seconds, "
            "padding=True, return_tensors='pt')"
        )
    try:
        tokenizer = tokenizer_of(source, local=False)
    except LutlabError:
        raise
    except Exception as error:  # of many kinds, the Rust tokenizers' own is a bare Exception
        raise LutlabError(
            f"no tokenizer found at '{source}', where the model came from: give calibration=<token ids "
            "[samples, seqlen]> of text like the model will read"
        ) from error
    text = own.text(model, tokenizer) if task == "causal_lm" else load_text(DEFAULT_TEXT)
    seqlen = min(evaluation_seqlen(model.config), DEFAULT_SEQLEN)
    log.info(
        "calibrating on %d windows of %d tokens of a text %s; calibration=<token ids> chooses another",
        DEFAULT_SAMPLES,
        seqlen,
        text.origin,
    )
    return calibration_inputs(task, text, tokenizer, DEFAULT_SAMPLES, seqlen, seed=0)
