"""A LLaMA model as a GGUF file, what llama.cpp reads: codes of quantized layers as they are, everything else exact.

gguf/packing.py says which codes have a type, and as which bytes. Layers that are not quantized, the embeddings
and the head are float16 where that is exact, else float32; norms are float32; a head that is tied is not in the file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lutlab.base import arguments
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import draft_beside
from lutlab.base.lazy import PreTrainedModel, PreTrainedTokenizerBase, torch
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.checkpoint.saving import as_uniform, check_saved
from lutlab.embeddings import is_tied
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.dense import PackedDense
from lutlab.gguf import vocabulary as gguf_vocabulary
from lutlab.gguf.blocks import Type
from lutlab.gguf.file import Encoded, as_floats, check_llama, write
from lutlab.gguf.names import parts
from lutlab.gguf.packing import (
    WITH_OFFSET,
    WITHOUT_OFFSET,
    Affine,
    affine,
    encoded,
    exact,
    fills,
    holding,
)
from lutlab.models.families import ends_of_text, weight_of
from lutlab.modules import QuantLinear

log = logging.getLogger(__name__)


def export_gguf(
    model: PreTrainedModel,
    path: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    wider: bool = False,
) -> None:
    """Write a quantized LLaMA model as a GGUF file for llama.cpp, codes and scales as they are.

    One rounding is possible, and a warning says how far it went: the offset of a group of asymmetric codes, in Q4_1 and
    Q5_1, is a float16.

    Args:
        model: LLaMA model without biases, with plain rotary embeddings; any of its linear layers quantized.
        path: path of a file that is not there yet, as `model.gguf`.
        tokenizer: byte-level BPE tokenizer, written with the chat template that it has. None: a file without
            vocabulary, which llama.cpp gives and takes token ids.
        wider: weights that no type of their own width holds exactly go into the narrowest one that does (q=3 into Q4_0,
            asymmetric q=4 into Q5_0) instead of being refused, or having offsets rounded.

    Raises:
        LutlabError: no type holds a layer, or none of its width; scales need float32; another architecture; a tokenizer
            that GGUF has no place for; or the file cannot be written. The message says which, and what to do.
    """
    check_saved(model, tokenizer)
    check_llama(model)
    path = arguments.path("path", path).resolve()
    if path.exists():
        raise LutlabError(
            f"{path} exists: lutlab overwrites no model; give a new path, or remove that file first"
        )
    ends = ends_of_text(model)
    if tokenizer is not None:  # before layers, which take time
        gguf_vocabulary.checked(tokenizer, model.config.vocab_size, ends)
    offsets = _Offsets()
    tensors = dict(_tensors(model, wider, offsets))
    try:
        with draft_beside(path) as beside:
            write(model.config, tensors, beside / path.name, tokenizer, ends)
            (beside / path.name).rename(path)
    except OSError as error:
        raise LutlabError(
            f"cannot write {path} ({type(error).__name__}: {error}): check the disk's space and permissions"
        ) from error
    offsets.report()
    if tokenizer is None:
        log.warning("%s has no vocabulary: llama.cpp gives and takes token ids alone", path)


def _tensors(
    model: PreTrainedModel, wider: bool, offsets: _Offsets
) -> Iterator[tuple[str, Encoded]]:
    """GGUF's name and value of every part.

    Raises:
        LutlabError: a layer has no type; the message names it.
    """
    tied = is_tied(model)
    for name, path, module, heads in parts(model):
        if name == "output.weight" and tied:
            continue
        if not isinstance(module, QuantLinear):
            yield name, as_floats(weight_of(module), heads)
        elif isinstance(module.packed, PackedDense):
            yield name, as_floats(module.packed.weight, heads)
        else:
            tensor = _tensor_of(path, module)
            try:
                yield name, _in_type(affine(tensor, heads), wider, offsets)
            except LutlabError as error:
                raise LutlabError(f"{path}: {error}") from error


def _tensor_of(path: str, layer: QuantLinear) -> UniformTensor | BCQTensor:
    """A layer's binary codes where one bit has them, else its uniform ones, with the errors of as_uniform."""
    packed = layer.packed
    signs = isinstance(packed, PackedBCQ) and packed.bits == 1 and packed.offset is None
    return packed.unpack() if signs else as_uniform(path, layer)


def _in_type(weight: Affine, wider: bool, offsets: _Offsets) -> Encoded:
    """A layer in the type of its width; where wider, in the narrowest that holds it.

    Raises:
        LutlabError: there is none; the message names the nearest.
    """
    enough = [kind for kind in holding(weight) if kind.bits >= weight.bits]
    if enough and (wider or enough[0].bits == weight.bits):
        return exact(weight, enough[0])
    rounding = WITH_OFFSET.get(weight.bits)
    avoidable = wider and weight.levels is not None
    if rounding and weight.offset is not None and fills(weight, rounding) and not avoidable:
        return offsets.rounded(weight, rounding)
    same = next((kind for kind in WITHOUT_OFFSET if kind.bits == weight.bits), None)
    if same is None:
        why = f"GGUF has no type of {weight.bits} bits"
    elif not fills(weight, same):
        why = (
            f"{same.name} has one scale for {same.group} neighbours, which these groups do not fill"
        )
    elif weight.levels is None:
        why = f"{same.name} has no float offset a group, which Q4_1 and Q5_1 alone have"
    else:
        low, high = map(int, weight.levels.aminmax())
        why = f"{same.name} has no room for weights of {low} to {high} scales"
    layer = f"q={weight.bits} g={weight.group_size} [N, K] = {list(weight.codes.shape)}"
    if not enough:
        raise LutlabError(
            f"{layer}: {why}, nor does a wider type hold the same weights: quantize with a g that is a multiple of 32 "
            "and divides K, at q=8 with symmetric=true; or keep this model with lutlab.save"
        )
    nearest = enough[0]
    raise LutlabError(
        f"{layer}: {why}. {nearest.name} holds the same weights in {nearest.stored_bits:g} bits each: give "
        "export_gguf(…, wider=True); or quantize at q=4, whose types are Q4_0 (symmetric=true) and Q4_1"
    )


@dataclass
class _Offsets:
    """What rounding offsets to float16 did to the layers that need it.

    Attributes:
        layers: number of layers.
        groups: number of their groups.
        moved: number of groups whose offset is no float16.
        most: largest change of a weight.
        steps: the largest change in units of the group's scale.
    """

    layers: int = 0
    groups: int = 0
    moved: int = 0
    most: float = 0.0
    steps: float = 0.0

    def rounded(self, weight: Affine, kind: Type) -> Encoded:
        """A layer in a type with offsets.

        Raises:
            LutlabError: an offset is beyond float16.
        """
        assert weight.offset is not None  # as the caller looked
        offset = weight.offset.half()
        if not torch.isfinite(offset).all():
            raise LutlabError(
                f"{kind.name} has the offset of a group in float16, and {weight.offset.abs().max():.3g} is "
                "beyond that: give export_gguf(…, wider=True), or keep this model with lutlab.save"
            )
        change = (offset.double() - weight.offset).abs()
        self.layers += 1
        self.groups += change.numel()
        self.moved += int((change > 0).sum())
        self.most = max(self.most, float(change.max()))
        steps = (change / weight.scale.double().abs()).nan_to_num(0)
        self.steps = max(self.steps, float(steps.max()))
        return encoded(weight, kind, weight.codes, weight.scale, offset)

    def report(self) -> None:
        """Say what was rounded, if anything was."""
        if self.moved:
            log.warning(
                "%d layers have asymmetric codes, whose offset -scale * zero_point is a float16 in Q4_1 and Q5_1: %d "
                "of %d groups were rounded, by at most %.2g (%.2g of a step between neighbouring weights); wider=True "
                "writes all weights exactly, in half a bit more or 2.5 bits (q=5)",
                self.layers,
                self.moved,
                self.groups,
                self.most,
                self.steps,
            )
