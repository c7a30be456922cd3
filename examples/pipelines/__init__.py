"""Three pipelines on generated data: revenue per minute, click sessions, dead-letter triage.

Each runs by itself against a server (`python -m examples.pipelines.orders --help`); docs/pipeline.md describes them.
"""
