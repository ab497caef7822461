"""Short names of the variants of the GPU kernel, in the order of idea: kernel=r4 is kernel=bit_planes.

A record, a message and the file of a kernel have the name of the idea; the short one is for typing, and in older notes.
"""

SHORT_NAMES = {
    "r0": "paper",
    "r3": "lane_tables",
    "r4": "bit_planes",
    "r5": "uniform_mma",
    "r6": "half_bits",
}


def full_name(kernel: str) -> str:
    """The name of a variant's idea for its short name; any other name is returned as it is."""
    return SHORT_NAMES.get(kernel, kernel)
