"""Appends: the ladder they climb, and those that climb it together."""
