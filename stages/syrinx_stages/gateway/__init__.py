"""The public HTTP API: requests in, audio out. Imports no torch."""
