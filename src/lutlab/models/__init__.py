"""Load a causal language model from the hub, a folder, the package or its config alone; walk its linear layers."""

from __future__ import annotations

# Raised by whoever changes what is loaded: synthetic weights, the evaluation window, which layers are quantized in
# what order. Part of ids (experiment/store/components.py).
VERSION = 1
