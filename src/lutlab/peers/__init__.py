"""Public code that lutlab is compared with, a file each: for benchmarks and evaluators alike."""
