"""Exports and imports that one process does by itself, without Spark: one topic, one file."""
