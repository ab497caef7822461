"""Kernel tests of other folders take sanitized.py from here."""
