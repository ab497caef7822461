"""Latency, memory and number of GPUs of a decoder that was not run: from bytes, bandwidth, launches and links.

    predict.latency("opt-30b", q=3, g=64, gpu="A100-80GB", gpus=2).ms_per_token
    predict.memory("opt-175b", q=3, context=2048, gpus=8).each
    predict.gpus("opt-175b", q=16, gpu="A100-80GB")

shapes.py has the sizes of a model, devices.py those of GPUs, per_token.py what an engine costs, as constants.json has
it fitted to printed latencies (tools/fit_latency.py). torch is imported only where a method says how it stores a
weight.
"""

from lutlab.predict.devices import DEVICES, Device, cpu, device
from lutlab.predict.footprint import PAPER, Memory
from lutlab.predict.footprint import predict_gpus as gpus
from lutlab.predict.footprint import predict_memory as memory
from lutlab.predict.per_token import ENGINES, Engine, Errors, Prediction, Rates
from lutlab.predict.per_token import engine_of as engine
from lutlab.predict.per_token import predict_latency as latency
from lutlab.predict.shapes import Decoder, decoder

__all__ = [
    "DEVICES",
    "ENGINES",
    "PAPER",
    "Decoder",
    "Device",
    "Engine",
    "Errors",
    "Memory",
    "Prediction",
    "Rates",
    "cpu",
    "decoder",
    "device",
    "engine",
    "gpus",
    "latency",
    "memory",
]
