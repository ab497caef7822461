"""Hydra launcher of lutlab on Ray."""
