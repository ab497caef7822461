"""Products with packed weights: reference, geometry and launcher of each operation."""
