"""Tokens a second with QIGen's own kernels in the place of ours: the paper's idea on this machine (QIGen Figure 4).

    tokens_per_s as generation.py measures it with engine=transformers, while every quantized layer multiplies by
    kernels/cpu/qigen/qigen_gemv.py

For uniform codes of 2, 3 or 4 bits (method=rtn, gptq) and float32 activations. Checked before it is timed: lutlab's
own product, seeing all tokens at once, must choose the tokens that QIGen's kernels decoded.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lutlab import generate
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, torch
from lutlab.base.limits import Count
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, Subject
from lutlab.evaluators import evaluation_mode
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.evaluators.depth import scaled_to_all_layers
from lutlab.evaluators.generation import (
    TRANSFORMERS,
    check_context,
    decode,
    first_difference,
    prompts,
    timed,
)
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.cpu.qigen.qigen_blocks import PackedQIGen

if TYPE_CHECKING:
    from lutlab.modules import QuantLinear


# Part of the rate at which memory is read that QIGen's products reach on the machines measured.
_READ_SHARE = 0.15


@register("evaluator", "qigen")
@dataclass(frozen=True)
class QIGen(Evaluator):
    """Metric `tokens_per_s`, higher is better; samples are the seconds of each repeat.

    The fact `searched`: whether the micro kernels were found by time on this machine (qigen_gemv.search), or are the
    default ones.

    Attributes:
        tokens: number of tokens to decode.
        repeats: number of timed repeats, after an untimed one.
    """

    version: ClassVar[int] = 2
    task: ClassVar[str] = "causal_lm"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("tokens_per_s", "tokens/s", "QIGen", lower_is_better=False),
    )
    of_this_machine: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("transformers",)
    tokens: Count = 128
    repeats: Count = 5

    @scaled_to_all_layers
    def measure(self, subject: Subject) -> Measurement:
        """Needs no text and no tokenizer, and memory for every quantized weight once more.

        Raises:
            NoCompiler: there is no C compiler.
        """
        from lutlab.kernels.cpu.qigen.qigen_gemv import parameters, variant

        model = subject.model
        check_context(model, self.tokens)
        packed = _packed(model)
        with evaluation_mode(model):
            with _multiplying(packed):
                ids = decode(model, self.tokens)
            at = first_difference(model, ids)
        if at is not None:
            raise LutlabError(
                f"QIGen's kernels decode other tokens than lutlab's, first at {at} of {self.tokens}: the model is "
                "broken, or the kernels are wrong; their speed would say nothing"
            )
        with _multiplying(packed), evaluation_mode(model):
            engine = generate.engine(model, length=self.tokens, name=TRANSFORMERS)
            rate = timed(engine, prompts(model, 1, 1), self.tokens, self.repeats)
        facts = {
            "kernel": sorted({variant(weight) for weight in packed.values()}),
            "searched": all(parameters(w.shape, w.bits, w.group_size)[1] for w in packed.values()),
        }
        return dataclasses.replace(rate, facts={**rate.facts, **facts})


def _packed(model: PreTrainedModel) -> dict[QuantLinear, PackedQIGen]:
    """Every quantized layer's weight in QIGen's layout."""
    from lutlab.kernels.cpu.qigen import qigen_gemv
    from lutlab.modules import QuantLinear

    if model.device.type != "cpu" or model.dtype != torch.float32:
        raise LutlabError(
            f"QIGen's kernels take float32 activations on the CPU, the model is {model.dtype} on {model.device}: "
            "run with device=cpu dtype=float32"
        )
    packed = {}
    for name, layer in model.named_modules():
        if isinstance(layer, QuantLinear):
            stored = layer.packed
            if not isinstance(stored, PackedUniform):
                raise LutlabError(
                    f"QIGen multiplies uniform codes, those of {name} are not: quantize by method=rtn or method=gptq"
                )
            packed[layer] = qigen_gemv.prepare(stored.unpack())
    if not packed:
        raise LutlabError(
            "no layer is quantized: QIGen has nothing to multiply (method=rtn or gptq)"
        )
    return packed


@contextmanager
def _multiplying(packed: Mapping[QuantLinear, PackedQIGen]) -> Iterator[None]:
    """The layers' products are QIGen's inside."""
    for layer, weight in packed.items():
        vars(layer)["forward"] = functools.partial(_product, weight=weight, bias=layer.bias)
    try:
        yield
    finally:
        for layer in packed:
            del vars(layer)["forward"]


def _product(x: torch.Tensor, weight: PackedQIGen, bias: torch.Tensor | None) -> torch.Tensor:
    """x: [..., K] float32 -> [..., N]."""
    from lutlab.kernels.cpu.qigen.qigen_gemv import gemv

    y = gemv(x, weight)
    return y if bias is None else y + bias
