from tests.gguf.gguf_files import _cache  # noqa: F401
