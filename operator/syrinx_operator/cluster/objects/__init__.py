"""Kinds, names and values of what is in the cluster."""
