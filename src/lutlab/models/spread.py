"""A model in memory spread over all GPUs of the machine, whole decoder blocks at a time.

accelerate decides which module goes where and moves what passes between them; the driver and the evaluators work as
they do on one device.
"""

from __future__ import annotations

from collections.abc import Mapping

from lutlab.errors import LutlabError
from lutlab.lazy import PreTrainedModel
from lutlab.models.families import decoder_blocks


def spread(
    model: PreTrainedModel, device_map: Mapping[str, int | str] | None = None
) -> PreTrainedModel:
    """Place a model's modules, in place.

    Args:
        model: model in memory, on any device.
        device_map: module path -> device; None: all GPUs, evenly filled.

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
