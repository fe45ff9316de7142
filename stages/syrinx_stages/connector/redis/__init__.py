"""The connector over Redis Streams."""
