"""What one hop between two stages costs: processes on loopback, a real Redis, the project's own connector."""
