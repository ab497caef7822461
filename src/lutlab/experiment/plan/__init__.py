"""A configuration turned into rows and cells: nothing is measured here."""
