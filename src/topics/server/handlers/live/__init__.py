"""Handlers of what stays open: watch sessions, streams of events, and who is connected."""
