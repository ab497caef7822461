"""Weights in, codes and coefficients out: one file a method, found by the registry; no model in sight."""
