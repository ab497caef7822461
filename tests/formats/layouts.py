"""What a format makes again of a layout."""


def sizes(packed):
    """Buffer -> its shape and dtype; None where there is none."""
    return {name: None if b is None else (b.shape, b.dtype) for name, b in packed.buffers.items()}


def made_again(packed, device="cpu"):
    """A weight of the same buffers without their numbers, of the layout alone."""
    empty = type(packed).from_layout(packed.layout(), device)
    assert (empty.layout(), empty.shape) == (packed.layout(), packed.shape)
    assert sizes(empty) == sizes(packed)
    return empty
