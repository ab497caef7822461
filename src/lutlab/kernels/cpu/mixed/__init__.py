"""Groups of 2, 3 and 4 bits with outliers."""
