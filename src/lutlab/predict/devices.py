"""GPUs as data: usable memory, peak bandwidth, link; and a CPU, whose bandwidth is measured.

Memory is what torch reports as the whole of a device, which is less than what its maker prints. Bandwidths and links
are the makers' peaks, a link in both directions together, as NVIDIA counts it.
"""

from __future__ import annotations

from dataclasses import dataclass

from lutlab.base.errors import LutlabError, nearest

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """A device that decodes.

    Attributes:
        name: name of the device, a value of `gpu=`.
        memory: usable bytes.
        bandwidth: bytes a second; of a GPU the peak, of a CPU as measured.
        link: bytes a second to the other devices, both directions together; 0 where there is none.
        source: source of these numbers.
    """

    name: str
    memory: float
    bandwidth: float
    link: float
    source: str

    def __post_init__(self) -> None:
        if not (self.memory > 0 and self.bandwidth > 0 and self.link >= 0):
            raise LutlabError(
                f"device '{self.name}' has memory={self.memory}, bandwidth={self.bandwidth}, link={self.link}: give "
                "bytes and bytes a second above 0 (link 0: one device alone)"
            )


_SHEET = "NVIDIA's data sheet; memory as torch reports it"
_TABLE = (
    # name, usable GiB, TB/s, GB/s of the link
    ("V100-32GB", 31.7, 0.900, 300, f"{_SHEET}; SXM2, NVLink 2"),
    ("A100-40GB", 39.4, 1.555, 600, f"{_SHEET}; SXM4, NVLink 3"),
    ("A100-80GB", 79.2, 2.039, 600, f"{_SHEET}; SXM4, NVLink 3"),
    ("H100-80GB", 79.1, 3.350, 900, f"{_SHEET}; SXM5, NVLink 4"),
    ("H200", 139.0, 4.800, 900, f"{_SHEET}; SXM5, NVLink 4"),
    ("A6000", 47.5, 0.768, 112.5, f"{_SHEET}; RTX A6000 with an NVLink bridge"),
    ("L40S", 44.4, 0.864, 64, f"{_SHEET}; PCIe 4.0 x16"),
    ("RTX-3090", 23.7, 0.936, 64, f"{_SHEET}; PCIe 4.0 x16"),
    ("RTX-4090", 23.6, 1.008, 64, f"{_SHEET}; PCIe 4.0 x16"),
)
DEVICES = {
    name: Device(name, gib * GIB, tera * 1e12, giga * 1e9, source)
    for name, gib, tera, giga, source in _TABLE
}


def device(gpu: str | Device) -> Device:
    """The GPU of a name; a Device is itself.

    Raises:
        LutlabError: an unknown type.
    """
    if isinstance(gpu, Device):
        return gpu
    if gpu not in DEVICES:
        raise LutlabError(
            f"unknown GPU type '{gpu}': {nearest(str(gpu), DEVICES)}; of another give a predict.Device with its "
            "memory, bandwidth and link"
        )
    return DEVICES[gpu]


def cpu(bandwidth: float, memory: float) -> Device:
    """This machine's CPU.

    Args:
        bandwidth: bytes a second read by as many threads as will decode, measured.
        memory: memory in bytes.
    """
    return Device("CPU", memory, bandwidth, 0, "measured")
