"""Attacks on the files that lutlab reads and writes: damage (attack.py) and kills (kills.py), seeded, without end."""
