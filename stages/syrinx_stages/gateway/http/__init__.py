"""The HTTP API: routes, bodies, responses."""
