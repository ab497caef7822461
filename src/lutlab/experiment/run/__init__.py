"""The pipeline in the user's process, the worker, progress, tracking, the command line."""
