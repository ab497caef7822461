"""Products with packed weights: reference, geometry and launcher of each operation."""

from __future__ import annotations

# Raised by whoever changes which kernel is chosen, or how a weight without one is multiplied. Part of ids.
DISPATCH_VERSION = 1
