"""What the benchmarks of the connector share."""
