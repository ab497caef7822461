"""Measured records as one table for every reader: notebooks, the dashboard, the commands `lutlab results`."""
