"""llama.cpp decoding a GGUF file, a token at a time."""

from __future__ import annotations

import ctypes
import logging
import time
from pathlib import Path

from lutlab.errors import LutlabError
from lutlab.lazy import np

CACHES = ("f16", "f32")


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
