"""Programs to start from, each in one file. The tests run them against a real server."""
