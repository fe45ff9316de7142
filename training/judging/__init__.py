"""Measures what a checkpoint says."""
