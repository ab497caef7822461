"""A quantized model moved by gradients: its weights, its scales, or its codes, stage after stage (stages.py).

    start (a quantized copy), full (the model as it came)  ── a stage ──▶  start, whose layers are stored as before

Versions are part of ids (experiment/store/components.py) and stand here so that a plan reads them without torch. A
default of specs.Tuning is part of no id, so that whoever changes one raises the versions of the stages that read it.
"""

from __future__ import annotations

# Raised by whoever changes the weights that weights.py finds, or the order, the rates or the choice of loop.py.
WEIGHTS_VERSION = 1
# Raised by whoever changes the scales that scales.py finds; a change of loop.py raises it too.
SCALES_VERSION = 1
# Raised by whoever changes what blocks.py finds; a change of loop.py raises it too.
BLOCKS_VERSION = 2
# Raised by whoever changes what stages.py finds of weights that are not quantized; a change of loop.py raises it too.
WHOLE_VERSION = 1
# Raised by whoever changes the losses of labelled pairs, or which parameters of a classifier's head are trained.
LABELS_VERSION = 1
