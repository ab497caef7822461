"""Checkpoints that other projects load: one file a layout. Uniform weights only; binary codes are refused."""
