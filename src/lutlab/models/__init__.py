"""Load a causal language model from the hub, a folder, the package or its config alone; walk its linear layers."""
