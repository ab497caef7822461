"""llama.cpp's files: header, names, blocks and tokenizer, read and written."""
