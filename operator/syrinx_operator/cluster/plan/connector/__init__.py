"""The managed Redis."""
