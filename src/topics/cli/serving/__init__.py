"""The server from the command line: its settings, its start, its keys."""
