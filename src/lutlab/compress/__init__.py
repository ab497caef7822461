"""A model quantized block by block: calibration, rescaling, widths, search; or drawn.

Versions are part of ids (experiment/store/components.py) and stand here so that a plan reads them without torch.
"""

from __future__ import annotations

# Raised by whoever changes what driver.py returns, calibration, rescaling, widths and kept blocks included.
DRIVER_VERSION = 1
# Raised by whoever changes the widths that search.py finds under a budget.
SEARCH_VERSION = 1
# Raised by whoever changes the numbers that synthetic.py and drawn.py draw, or the layouts that sizes.py finds.
SYNTHETIC_VERSION = 1
