"""The tensors of a GGUF file: the bytes of their rows, and their numbers, to the last bit of float32."""

from __future__ import annotations

from lutlab.base.lazy import np, torch
from lutlab.gguf import blocks as gguf_blocks
from lutlab.gguf.header import FLOATS, Header
from lutlab.gguf.names import halves

_CHUNK = 2**22  # weights dequantized at a time


def blocks_of(header: Header, name: str, heads: int | None = None) -> np.ndarray:
    """The bytes of a tensor's rows, [N, bytes] uint8; those of q and k, by their heads, in transformers' order."""
    stored = header.tensors[name]
    rows = stored.shape[0]
    data = np.memmap(header.path, np.uint8, "r", stored.offset, (rows, stored.nbytes // rows))
    return data if heads is None else halves(data, heads)


def as_stored(header: Header, name: str, heads: int | None = None) -> torch.Tensor:
    """A tensor in float32, or in a narrower dtype of the file's or float16 that holds it exactly.

    Raises:
        LutlabError: the package gguf cannot dequantize its type, or a number is none.
    """
    stored, data = header.tensors[name], blocks_of(header, name, heads)
    if stored.type in FLOATS:
        dtype = getattr(torch, FLOATS[stored.type])
        tensor = torch.frombuffer(bytearray(data.tobytes()), dtype=dtype).view(stored.shape)
    else:
        tensor = torch.empty(stored.shape)
        step = max(1, _CHUNK // stored.shape[-1])
        for first in range(0, len(data), step):
            tensor[first : first + step] = _dequantized(header, name, data[first : first + step])
    if not torch.isfinite(tensor).all():
        raise header.refused(
            f"tensor {name} holds NaN or infinite values", "it is damaged, fetch it again"
        )
    half = tensor.half()
    return half if tensor.dtype == torch.float32 and torch.equal(half.float(), tensor) else tensor


def _dequantized(header: Header, name: str, data: np.ndarray) -> torch.Tensor:
    from gguf import GGMLQuantizationType, quants

    stored = header.tensors[name]
    if stored.type in ("Q1_0", "Q2_0"):  # which the package does not dequantize
        return gguf_blocks.values(np.array(data), stored.type)
    try:
        with np.errstate(all="ignore"):
            return torch.from_numpy(quants.dequantize(data, GGMLQuantizationType(stored.number)))
    except NotImplementedError as error:
        raise header.refused(
            f"tensor {name} is of type {stored.type}, which the package gguf does not dequantize",
            "update gguf (pip install -U gguf), or take the model's safetensors",
        ) from error
