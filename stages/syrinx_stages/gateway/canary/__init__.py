"""Requests that the gateways of a canary serve."""
