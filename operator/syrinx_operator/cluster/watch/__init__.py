"""The operator's connections: the API server, Leases, a Prometheus, the stages' ports."""
