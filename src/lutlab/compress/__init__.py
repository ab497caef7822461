"""A model quantized block by block: calibration, rescaling, widths, search."""
