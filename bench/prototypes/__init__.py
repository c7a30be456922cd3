"""Prototypes that decisions rest on. Measured, never shipped."""
