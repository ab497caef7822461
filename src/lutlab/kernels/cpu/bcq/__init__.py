"""Binary codes, and uniform ones as planes, by lookup tables."""
