"""Models on disk: lutlab's own folders, transformers' hook, and other projects' layouts."""

VERSION = (
    1  # of what is read from folders that are quantized already; part of the ids of method=stored
)
