"""QIGen's kernels: blocks in Z-order, generated for a layer's bits and groups."""
