"""Prediction of latency, memory and number of GPUs, judged against what papers print and what was measured here."""
