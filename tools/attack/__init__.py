"""Attacks on what lutlab promises, seeded, without end: damaged files, killed runs, hostile lines and calls."""
