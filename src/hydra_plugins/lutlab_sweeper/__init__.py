"""Hydra sweeper of lutlab."""
