"""A LLaMA model as a GGUF file, every matrix in a named type of ggml, and llama.cpp decoding it, a token at a time.

    encode(model, "q3_K", "f16") -> {name: Encoded}     rounded(encoded) -> [N, K] float32
    with Decoder(path, length, threads) as decoder: decoder.step(token) -> [V]

Layers of method=ggml go into the file as they are. Another quantized layer's codes are the file's where the type holds
them exactly (gguf/packing.py), as q4_0 does symmetric ones of q=4. All other linear weights, dequantized, are
rounded by ggml's own quantizer. None goes to a wider type, as in llama.cpp's `--pure`; the head has a type of its own.
Embeddings, of which a token reads one row, are float16 where that is exact, else float32; norms are float32.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import time
from collections.abc import Iterator
from pathlib import Path

from lutlab.base import ggml
from lutlab.base.errors import LutlabError
from lutlab.base.ggml import blocks_of, number_of
from lutlab.base.lazy import PreTrainedModel, np, torch
from lutlab.base.tensors import BCQTensor, BlocksTensor, UniformTensor
from lutlab.gguf.file import FLOATS, Encoded, as_floats, check_llama
from lutlab.gguf.names import halves, interleaved, parts
from lutlab.gguf.packing import affine, exact, holding
from lutlab.models.families import weight_of

# Type -> bits a weight as stored, scales included (ggml-common.h); narrowest first.
BITS = {
    "q2_K": 2.625, "q3_K": 3.4375, "q4_0": 4.5, "q5_0": 5.5, "q6_K": 6.5625, "q8_0": 8.5, "f16": 16, "f32": 32,
}  # fmt: skip
_CODE_BITS = {"q2_K": 2, "q3_K": 3, "q4_0": 4, "q5_0": 5, "q6_K": 6, "q8_0": 8, "f16": 16}
CACHES = ("f16", "f32")


def type_for(q: float) -> str:
    """The narrowest type of at least q bits a code.

    >>> type_for(3), type_for(2.5), type_for(16)
    ('q3_K', 'q3_K', 'f16')
    """
    return next(name for name, bits in _CODE_BITS.items() if bits >= q)


def block_of(kind: str) -> int:
    """Weights that share scales: the inputs of a layer must be a multiple."""
    return 1 if kind in FLOATS else ggml.block_of(kind)[0]


def check_inputs(model: PreTrainedModel, linear: str, head: str) -> None:
    """Raises LutlabError: a model that is not written, or a matrix whose inputs are no multiple of its type's block."""
    check_llama(model)
    config = model.config
    matrices = [("linear layers", linear, config.hidden_size), ("head", head, config.hidden_size)]
    matrices.append(("mlp.down_proj", linear, config.intermediate_size))
    for what, kind, inputs in matrices:
        if inputs % block_of(kind):
            raise LutlabError(
                f"{kind} has blocks of {block_of(kind)} weights, and the {what} of this model have {inputs} inputs, no "
                f"multiple of it: take a type with blocks of 32, as {'q8_0' if what == 'head' else 'q4_0'}"
            )


def encode(model: PreTrainedModel, linear: str, head: str, threads: int) -> dict[str, Encoded]:
    """Every tensor of a LLaMA model by GGUF's name, linear layers and head in types of BITS; raises as check_inputs."""
    check_inputs(model, linear, head)
    encoded = {}
    for name, _, module, heads in parts(model):
        if name.endswith("norm.weight") or name == "token_embd.weight":
            encoded[name] = as_floats(weight_of(module))
            continue
        kind = head if name == "output.weight" else linear
        encoded[name] = _as_it_is(module, heads, kind) or Encoded(
            _encoded(_weight_of(module, heads).numpy(), kind, threads), kind
        )
    return encoded


def _as_it_is(module: torch.nn.Module, heads: int | None, kind: str) -> Encoded | None:
    """A quantized layer in a type that holds it exactly; None: it has to be rounded."""
    from lutlab.modules import QuantLinear

    tensor = module.packed.unpack() if isinstance(module, QuantLinear) else None
    if isinstance(tensor, BlocksTensor):
        blocks = tensor.blocks.cpu()
        blocks = blocks if heads is None else interleaved(blocks, heads).contiguous()
        return Encoded(blocks.numpy(), tensor.type)
    if not isinstance(tensor, UniformTensor | BCQTensor):
        return None
    with contextlib.suppress(LutlabError):  # it has no float16 scales of neighbours
        weight = affine(tensor, heads)
        for exact_kind in holding(weight):
            if exact_kind.name.lower() == kind:
                return exact(weight, exact_kind)
    return None


def _encoded(values: np.ndarray, kind: str, threads: int) -> np.ndarray:
    """[N, K] float32 -> numbers, or the bytes [N, bytes of a row] of a quantized type."""
    if kind in FLOATS:
        return values.astype(FLOATS[kind], copy=False)
    return blocks_of(values, kind, threads=threads)


def rounded(tensor: Encoded, heads: int | None = None) -> torch.Tensor:
    """[N, K] float32, the weight that llama.cpp reads; heads: of q and k, whose rows go back to transformers' order."""
    if tensor.type in FLOATS:
        weight = torch.from_numpy(tensor.values).float()
    else:
        from gguf import GGMLQuantizationType, quants

        kind = GGMLQuantizationType(number_of(tensor.type))
        weight = torch.from_numpy(quants.dequantize(tensor.values, kind))
    return weight if heads is None else halves(weight, heads)


def tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """GGUF's name and the weight of every part; rows of q and k in llama.cpp's order."""
    for name, _, module, heads in parts(model):
        yield name, _weight_of(module, heads)


def _weight_of(module: torch.nn.Module, heads: int | None) -> torch.Tensor:
    """[N, K] or [N] float32, a quantized layer's dequantized."""
    from lutlab.modules import QuantLinear

    packed = module.packed if isinstance(module, QuantLinear) else None
    weight = packed.dequantize() if packed else weight_of(module)
    weight = weight.detach().float().cpu().contiguous()
    return weight if heads is None else interleaved(weight, heads)


class Decoder:
    """A GGUF file in llama.cpp, a token at a time; `with` closes it.

    Args:
        path: path of the GGUF file.
        length: tokens that its cache holds; it rounds up.
        threads: number of threads that multiply.
        cache: one of CACHES.
        flash: attention by its fused kernel.

    Raises:
        LutlabError: llama.cpp cannot load it.
    """

    def __init__(
        self, path: Path, length: int, threads: int, cache: str = "f16", flash: bool = False
    ) -> None:
        import llama_cpp

        import gguf

        # its own set_verbose(False) takes ggml's warnings for errors and shows them
        logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)
        cached = int(gguf.GGMLQuantizationType[cache.upper()])
        try:
            self.llama = llama_cpp.Llama(
                str(path),
                n_ctx=length,
                n_threads=threads,
                n_threads_batch=threads,
                type_k=cached,
                type_v=cached,
                flash_attn=flash,
                verbose=False,
            )
        except (ValueError, RuntimeError) as error:
            raise LutlabError(f"llama.cpp cannot load the model: {error}") from error
        self._token = (ctypes.c_int32 * 1)()
        self._batch = llama_cpp.llama_batch_get_one(self._token, 1)
        self._memory = llama_cpp.llama_get_memory(self.llama.ctx)
        self._vocabulary = self.llama.n_vocab()

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.llama.close()

    def rewind(self, tokens: int = 0) -> None:
        """Forget all tokens but the first `tokens`."""
        import llama_cpp

        llama_cpp.llama_memory_seq_rm(self._memory, 0, tokens, -1)

    def step(self, token: int) -> np.ndarray:
        """The logits [V] float32 that follow one token more, valid until the next step.

        Raises:
            LutlabError: llama.cpp refuses, as where its cache is full.
        """
        import llama_cpp

        self._token[0] = token
        if failed := llama_cpp.llama_decode(self.llama.ctx, self._batch):
            raise LutlabError(f"llama.cpp refuses a token (code {failed})")
        pointer = llama_cpp.llama_get_logits(self.llama.ctx)
        return np.ctypeslib.as_array(pointer, (self._vocabulary,))

    def seconds(self, first: int, tokens: int) -> float:
        """Seconds of decoding so many tokens greedily into the emptied cache."""
        self.rewind()
        last, began = first, time.perf_counter()
        for _ in range(tokens):
            last = int(self.step(last).argmax())
        return time.perf_counter() - began
