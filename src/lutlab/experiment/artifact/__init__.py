"""Experiments as data: artifacts, their claims, fronts and errata."""
