"""Uniform codes, converted and multiplied."""
