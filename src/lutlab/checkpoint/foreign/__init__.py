"""Other projects' layouts: a file each, read into lutlab's formats and written from them."""
