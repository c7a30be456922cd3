"""Servers, one or several: how to reach them (`connection`), and what they have between them (`several`)."""
