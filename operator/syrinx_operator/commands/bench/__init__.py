"""`syrinx bench`: measures latency and throughput of a pipeline under load."""
