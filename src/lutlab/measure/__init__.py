"""Timing, energy, and the products that are timed."""
