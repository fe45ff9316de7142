"""Moves a pipeline toward its spec."""
