"""Makes tests/kernels/ and tests/formats/ files of one name two modules."""
