"""Models on disk: lutlab's own folders, transformers' hook, and other projects' layouts."""
