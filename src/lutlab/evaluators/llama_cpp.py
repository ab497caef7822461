"""Tokens a second of llama.cpp on the same model in its q4_0 format: the peer of QIGen Figure 4.

    tokens_per_s = tokens / median over the repeats of the seconds that decoding them took

llama.cpp is no dependency of lutlab: the column is measured where llama-cpp-python and gguf are installed, and says so
where they are not. The model's weights (a quantized layer's, dequantized) are written as GGUF in float32, and
llama.cpp's own quantizer makes q4_0 of them: 4 bits and a float16 scale for 32 weights, the head in 6 bits. Decoding
is that of generation.py, with as many threads, and is checked before it is timed: q4_0 is a rounding, so the logits of
the first tokens need not equal ours, but must point the same way.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import logging
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lutlab.errors import LutlabError
from lutlab.evaluators import evaluation_mode
from lutlab.evaluators.contract import Evaluator, Metric, Work
from lutlab.evaluators.depth import scaled_to_all_layers
from lutlab.evaluators.generation import check_context
from lutlab.registry import register
from lutlab.specs import Measurement, RunSpec, Subject

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

_PEERS = ("llama_cpp", "gguf")
# Least cosine of q4_0's logits with ours, over the tokens checked: rounding leaves more, another model's are near 0.
_LIKE = 0.8
_CHECKED = 8
_Q4_0_BITS = 4.5  # 4 bits a weight, and a float16 scale for 32


@register("evaluator", "llama_cpp")
@dataclass(frozen=True)
class LlamaCpp(Evaluator):
    """Metric `tokens_per_s`, higher is better; samples are the seconds of each repeat.

    Attributes:
        tokens: to decode.
        repeats: timed, after one that is not.
    """

    version: ClassVar[int] = 1
    task: ClassVar[str] = "causal_lm"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("tokens_per_s", "tokens/s", "llama.cpp q4_0", lower_is_better=False),
    )
    of_this_machine: ClassVar[bool] = True
    tokens: int = 128
    repeats: int = 5

    @classmethod
    def obstacle(cls, run: RunSpec) -> str:
        """The peers that are not installed; empty where all are."""
        return _lacking()

    def work(self, run: RunSpec) -> Work:
        """A decoding that is checked and the timed ones, of a q4_0 model made from a float32 file."""
        return Work(
            checked_tokens=self.tokens,
            decoded_tokens=(1 + self.repeats) * self.tokens,
            bits=_Q4_0_BITS,
            packed_copies=1,
            float32_files=1,
        )

    @scaled_to_all_layers
    def measure(self, subject: Subject) -> Measurement:
        """Needs no text and no tokenizer; disk for the model in float32 in the temporary folder (TMPDIR).

        Raises:
            LutlabError: a peer is not installed, the model is no LLaMA or has too short a context, or llama.cpp
                refuses it or computes something else.
        """
        import torch

        if absent := _lacking():
            raise LutlabError(absent)
        model = subject.model
        check_context(model, self.tokens)
        first = getattr(model.config, "bos_token_id", None) or 0
        threads = torch.get_num_threads()
        with tempfile.TemporaryDirectory(prefix="lutlab-") as folder:
            decoder = _Decoder(_q4_0(model, Path(folder)), self.tokens, threads)
            ids, seen = decoder.decode(first, _CHECKED)
            with evaluation_mode(model):
                _check(model, [first, *ids], seen)
            decoder.decode(first, self.tokens)
            seconds = []
            for _ in range(self.repeats):
                began = time.perf_counter()
                decoder.decode(first, self.tokens)
                seconds.append(time.perf_counter() - began)
            decoder.close()
        version = importlib.metadata.version("llama-cpp-python")
        facts = {
            "tokens": self.tokens,
            "prompt_tokens": 1,
            "kernel": [f"llama.cpp q4_0, llama-cpp-python {version}"],
            "threads": threads,
        }
        values = {"tokens_per_s": self.tokens / statistics.median(seconds)}
        return Measurement(values=values, n=self.repeats, samples=tuple(seconds), facts=facts)


def _lacking() -> str:
    absent = [name for name in _PEERS if importlib.util.find_spec(name) is None]
    if not absent:
        return ""
    return f"{' and '.join(absent)} not installed: pip install llama-cpp-python gguf"


class _Decoder:
    """A GGUF file in llama.cpp, decoding greedily."""

    def __init__(self, path: Path, tokens: int, threads: int) -> None:
        import llama_cpp

        try:
            self.llama = llama_cpp.Llama(
                str(path),
                n_ctx=tokens + 1,
                n_threads=threads,
                n_threads_batch=threads,
                verbose=False,
            )
        except (ValueError, RuntimeError) as error:
            raise LutlabError(f"llama.cpp cannot load the model: {error}") from error

    def decode(self, first: int, tokens: int) -> tuple[list[int], list[np.ndarray]]:
        """The tokens chosen, and the logits [vocabulary] of each choice among the first _CHECKED."""
        self.llama.reset()
        ids, seen, last = [], [], first
        for _ in range(tokens):
            self.llama.eval([last])
            logits = self._logits()
            last = int(logits.argmax())
            ids.append(last)
            if len(seen) < _CHECKED:
                seen.append(logits.copy())
        return ids, seen

    def _logits(self) -> np.ndarray:
        import llama_cpp
        import numpy as np

        pointer = llama_cpp.llama_get_logits(self.llama.ctx)
        return np.ctypeslib.as_array(pointer, (self.llama.n_vocab(),))

    def close(self) -> None:
        self.llama.close()


def _check(model: PreTrainedModel, ids: list[int], seen: list[np.ndarray]) -> None:
    import numpy as np
    import torch

    tokens = torch.tensor([ids[: len(seen)]], device=model.device)
    ours = model(input_ids=tokens, use_cache=False).logits[0].float().cpu()
    theirs = torch.from_numpy(np.stack(seen)).float()
    alike = torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0).item()
    if not alike >= _LIKE:
        raise LutlabError(
            f"llama.cpp's logits have a cosine of {alike:.2f} with the model's, expected {_LIKE} or more: "
            "it computes something else, or 4 bits break this model; its speed would say nothing"
        )


def _q4_0(model: PreTrainedModel, folder: Path) -> Path:
    """The model as a q4_0 file of llama.cpp."""
    import llama_cpp

    # its own set_verbose(False) takes ggml's warnings for errors and shows them
    logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)
    whole, small = folder / "float32.gguf", folder / "q4_0.gguf"
    _write_gguf(model, whole)
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    paths = (str(whole).encode(), str(small).encode())
    failed = llama_cpp.llama_model_quantize(*paths, ctypes.byref(parameters))
    if failed:
        raise LutlabError(f"llama.cpp's quantizer refuses the model (code {failed})")
    whole.unlink()
    return small


def _write_gguf(model: PreTrainedModel, path: Path) -> None:
    """Float32 weights and the numbers of the config; no vocabulary, as tokens go in and out by id."""
    import gguf

    config = model.config
    if config.model_type != "llama":
        raise LutlabError(
            f"the llama.cpp column converts LLaMA models, this one is '{config.model_type}'"
        )
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
    for name, values in _tensors(model):
        writer.add_tensor(name, values.detach().float().cpu().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _rope_base(config: PreTrainedConfig) -> float:
    rope: dict[str, Any] = config.rope_parameters
    if rope.get("rope_type", "default") != "default":
        raise LutlabError(f"the llama.cpp column knows plain rotary embeddings, not {rope}")
    return float(rope["rope_theta"])


# LLaMA's own name of a block's part -> GGUF's
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """GGUF's name and the weight of every part."""
    config = model.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    yield "token_embd.weight", model.get_input_embeddings().weight
    yield "output_norm.weight", model.model.norm.weight
    yield "output.weight", model.get_output_embeddings().weight
    for index, block in enumerate(model.model.layers):
        for ours, theirs in _PARTS.items():
            weight = _weight(block.get_submodule(ours))
            if theirs in heads:
                weight = _interleaved(weight, heads[theirs])
            yield f"blk.{index}.{theirs}.weight", weight


def _weight(module: torch.nn.Module) -> torch.Tensor:
    from lutlab.modules import QuantLinear

    return module.packed.dequantize() if isinstance(module, QuantLinear) else module.weight


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q and k in llama.cpp's order: it rotates neighbours, transformers a head's first half with its second."""
    rows = weight.view(heads, 2, -1, weight.shape[1])
    return rows.transpose(1, 2).reshape(weight.shape)
