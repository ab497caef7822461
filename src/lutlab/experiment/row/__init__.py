"""One description of a row: its fields, the mistakes of a command line, the run it asks for, its commands and axes."""
