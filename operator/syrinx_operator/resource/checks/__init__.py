"""Which resources are valid."""
