"""The operator with many idle pipelines: requests to the API server, memory and processor time."""
