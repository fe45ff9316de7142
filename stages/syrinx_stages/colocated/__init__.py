"""A talker and a codec in one process: code frames pass in memory and are also written to Redis."""
