"""The engine: a quantized model generates text, a token a call (contract.py)."""
