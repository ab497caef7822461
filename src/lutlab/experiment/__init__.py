"""The framework on top of the library: artifacts, plans, records, reports, runs."""
