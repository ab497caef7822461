"""The decoder blocks of a model while it is quantized: here, all in memory (models/streamed.py: on disk), of one device
or spread over all GPUs of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, nn
from lutlab.models.families import decoder_blocks


class Blocks(Protocol):
    """The blocks of a model, one open at a time: its weights are in memory while it is."""

    def __len__(self) -> int:
        """Number of blocks."""

    def open(self, index: int) -> AbstractContextManager[nn.Module]:
        """A block with its full-precision weights."""


class Resident:
    """The blocks of a model that is in memory as a whole."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._blocks = decoder_blocks(model)

    def __len__(self) -> int:
        return len(self._blocks)

    @contextmanager
    def open(self, index: int) -> Iterator[nn.Module]:
        """The block; nothing to load or to free."""
        yield self._blocks[index]


def placed(model: PreTrainedModel, device: str) -> PreTrainedModel:
    """The model, in place, on a device and in evaluation mode."""
    model.to(device)  # type: ignore[arg-type] # transformers' wrapper of `to` loses that it is a method
    return model.eval()


def spread(
    model: PreTrainedModel, device_map: Mapping[str, int | str] | None = None
) -> PreTrainedModel:
    """Place a model's modules, in place, whole decoder blocks at a time; device_map: module path -> device.

    accelerate decides where it is not given, and moves what passes between modules; driver and evaluators work as they
    do on one device.

    Raises:
        LutlabError: the GPUs do not hold the model.
    """
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    if device_map is None:
        whole = [type(decoder_blocks(model)[0]).__name__]
        room = get_balanced_memory(model, no_split_module_classes=whole)
        device_map = infer_auto_device_map(model, room, no_split_module_classes=whole)
        left = [name for name, device in device_map.items() if device in ("cpu", "disk")]
        if left:
            raise LutlabError(
                f"device=spread: the GPUs of this machine do not hold the model, nothing is left for "
                f"{left[0] or 'any of it'}; take stream=true, which holds one block at a time, or dtype=float16"
            )
    return dispatch_model(model, dict(device_map), force_hooks=True)
