"""Benchmarks: medians of repeated runs against stated targets, written to RESULTS.md. Nothing here is a test."""
