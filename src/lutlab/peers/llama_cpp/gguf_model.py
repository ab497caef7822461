"""A LLaMA model as a GGUF file, every matrix in a named type of ggml, and llama.cpp decoding it, a token at a time.

    encode(model, "q3_K", "f16") -> {name: Encoded}     save(config, that, path)     rounded(encoded) -> [N, K] float32
    with Decoder(path, length, threads) as decoder: decoder.step(token) -> [V]

Linear weights (a quantized layer's, dequantized) are rounded by ggml's own quantizer, all to one type, none to a wider
one, as llama.cpp's `--pure` does; the head has a type of its own. Embeddings, of which a token reads one row, are
float16 where that is exact, else float32; norms are float32.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lutlab.errors import LutlabError
from lutlab.lazy import PreTrainedConfig, PreTrainedModel, np, torch
from lutlab.models.gguf_names import PARTS, halves, heads_of, interleaved
from lutlab.peers.llama_cpp import ggml_function, number_of

# Type -> bits a weight as stored, scales included (ggml-common.h); narrowest first.
BITS = {
    "q2_K": 2.625, "q3_K": 3.4375, "q4_0": 4.5, "q5_0": 5.5, "q6_K": 6.5625, "q8_0": 8.5, "f16": 16, "f32": 32,
}  # fmt: skip
FLOATS = {"f16": "float16", "f32": "float32"}
_CODE_BITS = {"q2_K": 2, "q3_K": 3, "q4_0": 4, "q5_0": 5, "q6_K": 6, "q8_0": 8, "f16": 16}
CACHES = ("f16", "f32")
_ROWS = 256  # of a matrix that a thread rounds at a time


@dataclass(frozen=True)
class Encoded:
    """A tensor as the file has it: values (numbers, or the bytes [N, bytes of a row] of a type), the type's name."""

    values: np.ndarray
    type: str


def type_for(q: float) -> str:
    """The narrowest type of at least q bits a code.

    >>> type_for(3), type_for(2.5), type_for(16)
    ('q3_K', 'q3_K', 'f16')
    """
    return next(name for name, bits in _CODE_BITS.items() if bits >= q)


def block_of(kind: str) -> int:
    """Weights that share scales: the inputs of a layer must be a multiple."""
    return 1 if kind in FLOATS else {"K": 256, "0": 32}[kind[-1]]


def check_inputs(model: PreTrainedModel, linear: str, head: str) -> None:
    """Raises LutlabError: no LLaMA, or a matrix with inputs that are no multiple of its type's block."""
    config = model.config
    if config.model_type != "llama":
        raise LutlabError(
            f"the llama.cpp column converts LLaMA models, this one is '{config.model_type}'"
        )
    if config.attention_bias or config.mlp_bias:
        raise LutlabError(
            "the llama.cpp column converts LLaMA models without biases, this one has some"
        )
    wanted = [("linear layers", linear, config.hidden_size), ("head", head, config.hidden_size)]
    wanted.append(("mlp.down_proj", linear, config.intermediate_size))
    for what, kind, inputs in wanted:
        if inputs % block_of(kind):
            raise LutlabError(
                f"{kind} has blocks of {block_of(kind)} weights, and the {what} of this model have {inputs} inputs, no "
                f"multiple of it: take a type with blocks of 32, as {'q8_0' if what == 'head' else 'q4_0'}"
            )


def encode(model: PreTrainedModel, linear: str, head: str, threads: int) -> dict[str, Encoded]:
    """Every tensor of a LLaMA model by GGUF's name, linear layers and head in types of BITS; raises as check_inputs."""
    check_inputs(model, linear, head)
    found = {}
    for name, weight in tensors(model):
        weight = weight.detach().float().cpu().contiguous()
        if name == "token_embd.weight":
            kind = "f16" if bool((weight.half().float() == weight).all()) else "f32"
        elif weight.dim() == 1:
            kind = "f32"
        else:
            kind = head if name == "output.weight" else linear
        found[name] = Encoded(_encoded(weight.numpy(), kind, threads), kind)
    return found


def _encoded(values: np.ndarray, kind: str, threads: int) -> np.ndarray:
    """[N, K] float32 -> numbers, or the bytes [N, bytes of a row] of a quantized type."""
    if kind in FLOATS:
        return values.astype(FLOATS[kind], copy=False)
    rows, columns = values.shape
    words = np.empty((rows, int(columns * BITS[kind]) // 8), dtype=np.uint8)
    quantize, number = ggml_function("quantize_chunk"), number_of(kind)

    def some(first: int) -> None:
        here, there = values[first : first + _ROWS], words[first : first + _ROWS]
        quantize(number, here.ctypes.data, there.ctypes.data, 0, len(here), columns, None)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(some, range(0, rows, _ROWS)))
    return words


def rounded(tensor: Encoded, heads: int | None = None) -> torch.Tensor:
    """[N, K] float32, the weight that llama.cpp reads; heads: of q and k, whose rows go back to transformers' order."""
    if tensor.type in FLOATS:
        weight = torch.from_numpy(tensor.values).float()
    else:
        from gguf import GGMLQuantizationType, quants

        kind = GGMLQuantizationType(number_of(tensor.type))
        weight = torch.from_numpy(quants.dequantize(tensor.values, kind))
    return weight if heads is None else halves(weight, heads)


def save(config: PreTrainedConfig, found: Mapping[str, Encoded], path: Path) -> None:
    """Write a file: tensors, and the numbers of the config; no vocabulary, as tokens go in and out by id.

    Raises:
        LutlabError: rotary embeddings that are not plain.
    """
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(_rope_base(config))
    for name, tensor in found.items():
        floats = tensor.type in FLOATS
        kind = None if floats else gguf.GGMLQuantizationType(number_of(tensor.type))
        writer.add_tensor(name, tensor.values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _rope_base(config: PreTrainedConfig) -> float:
    rope: dict[str, Any] = config.rope_parameters
    if rope.get("rope_type", "default") != "default":
        raise LutlabError(f"the llama.cpp column knows plain rotary embeddings, not {rope}")
    return float(rope["rope_theta"])


def tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """GGUF's name and the weight of every part; rows of q and k in llama.cpp's order."""
    yield "token_embd.weight", model.get_input_embeddings().weight
    yield "output_norm.weight", model.model.norm.weight
    yield "output.weight", model.get_output_embeddings().weight
    for index, block in enumerate(model.model.layers):
        for ours, theirs in PARTS.items():
            weight, heads = weight_of(block.get_submodule(ours)), heads_of(model.config, theirs)
            weight = weight if heads is None else interleaved(weight, heads)
            yield f"blk.{index}.{theirs}.weight", weight


def weight_of(module: torch.nn.Module) -> torch.Tensor:
    """[N, K], a quantized layer's dequantized."""
    from lutlab.modules import QuantLinear

    return module.packed.dequantize() if isinstance(module, QuantLinear) else module.weight


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
        import gguf
        import llama_cpp

        # its own set_verbose(False) takes ggml's warnings for errors and shows them
        logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)
        kept = int(gguf.GGMLQuantizationType[cache.upper()])
        try:
            self.llama = llama_cpp.Llama(
                str(path),
                n_ctx=length,
                n_threads=threads,
                n_threads_batch=threads,
                type_k=kept,
                type_v=kept,
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
