"""topics: a persistent event engine. Named append-only logs where lost data is always announced."""

__version__ = "0.1.0"
