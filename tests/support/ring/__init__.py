"""Runs the suites of `make test` and `make test-all`, also under load, and records what came of them."""
