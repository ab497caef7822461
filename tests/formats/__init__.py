"""Makes tests/formats/test_bcq.py and tests/quantizers/test_bcq.py two modules."""
