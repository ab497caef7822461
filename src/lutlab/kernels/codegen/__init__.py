"""C kernels written for one case and one machine: templates -> source -> a library, built once and kept."""
