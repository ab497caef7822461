"""llama.cpp decoding a GGUF file a token at a time, and the check that it computes the model of the file.

llama.cpp multiplies rounded weights by activations that it rounds to 8 bits. The check has transformers multiply by the
weights that the file holds: llama.cpp's logits may be at most twice as far from its logits as rounding the activations
to 8 bits takes them, and what float16 keys and values add.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lutlab.errors import LutlabError
from lutlab.evaluators import evaluation_mode, gguf_model
from lutlab.evaluators.gguf_model import PARTS, Encoded
from lutlab.lazy import PreTrainedModel, np, torch

CACHES = ("f16", "f32")
CHECKED = 8  # tokens whose logits are checked
_ROOM = 2.0
_FLOAT16 = 2.0**-10  # of float16 keys and values, and of sums in another order


class Decoder:
    """A GGUF file in llama.cpp, a token at a time; `with` closes it.

    Args:
        path: of the file.
        length: tokens that its cache holds; it rounds up.
        threads: that multiply.
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


def check(
    model: PreTrainedModel, encoded: Mapping[str, Encoded], decoder: Decoder, first: int
) -> dict[str, float]:
    """Raises LutlabError unless llama.cpp computes the model of the file; how far rounding took it, for a record.

    `logits_error`: |its logits - those of exact activations| / |those|, both with the weights of the file;
    `logits_error_expected`: the same of transformers with activations of 8 bits; `logits_cosine`: its with the model's.
    """
    decoder.rewind()
    ids, seen = [first], []
    for _ in range(CHECKED):
        seen.append(decoder.step(ids[-1]).copy())
        ids.append(int(seen[-1].argmax()))
    theirs = torch.from_numpy(np.stack(seen)).double()
    tokens = torch.tensor([ids[:-1]], device=model.device)
    with evaluation_mode(model):
        ours = model(input_ids=tokens, use_cache=False).logits[0].double().cpu()
        with _multiplying(model, encoded):
            both = model(input_ids=tokens.repeat(2, 1), use_cache=False).logits.double().cpu()
    exact, coarse = both
    error, expected = ((one - exact).norm() / exact.norm() for one in (theirs, coarse))
    if not error <= _ROOM * expected + _FLOAT16:
        raise LutlabError(
            f"llama.cpp's logits are {error:.1e} from those of its own weights, and rounding activations to 8 bits "
            f"explains {expected:.1e}: it computes something else; its speed would say nothing"
        )
    cosine = torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0)
    found = {"logits_error": error, "logits_error_expected": expected, "logits_cosine": cosine}
    return {name: float(value) for name, value in found.items()}


@contextmanager
def _multiplying(model: PreTrainedModel, encoded: Mapping[str, Encoded]) -> Iterator[None]:
    """Every product inside is by the weights of the file, the second text's with activations that are rounded."""
    with ExitStack() as stack:
        for name, module, heads in _products(model):
            hook = functools.partial(_product, encoded[name], heads)
            stack.callback(module.register_forward_hook(hook).remove)
        yield


def _products(model: PreTrainedModel) -> Iterator[tuple[str, torch.nn.Module, int | None]]:
    """GGUF's name, module and heads of every product."""
    yield "output.weight", model.get_output_embeddings(), None
    for index, block in enumerate(model.model.layers):
        for ours, theirs in PARTS.items():
            if not theirs.endswith("norm"):
                heads = gguf_model.heads_of(model.config, theirs)
                yield f"blk.{index}.{theirs}.weight", block.get_submodule(ours), heads


def _product(
    tensor: Encoded, heads: int | None, module: torch.nn.Module, args: Any, output: torch.Tensor
) -> torch.Tensor:
    """[2, T, K] -> [2, T, N] by a weight of the file, in the place of the module's output."""
    (x,) = args
    weight = gguf_model.rounded(tensor, heads).to(x)
    return torch.stack((x[0], _as_rounded(x[1], tensor.type))) @ weight.t()


def _as_rounded(x: torch.Tensor, kind: str) -> torch.Tensor:
    """Activations as ggml rounds them for a type: to 8 bits, a scale for each block of the type's; f16: to float16."""
    if kind in gguf_model.FLOATS:
        return x.half().to(x) if kind == "f16" else x
    blocks = x.unflatten(-1, (-1, gguf_model.block_of(kind)))
    step = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return ((blocks / step).round() * step).flatten(-2)
