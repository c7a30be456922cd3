"""The commands on topics, records, cursors and routers. Each module is one command, or one noun."""
