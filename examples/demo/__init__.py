"""A tour of topics in one terminal: `make demo`, or `python -m examples.demo`."""
