"""Seeded generators of what nobody should type, and the oracles that hold lutlab to its promises about it."""
