"""Timing, energy, and the products that are timed."""

from __future__ import annotations

# Raised by whoever changes what a product is timed with, or what a time or an energy is. Part of ids
# (experiment/store/components.py).
VERSION = 2
