"""Public code that lutlab is compared with: what a peer is, and llama.cpp; the others are in benchmarks/peers/."""
