"""Which Redis is the primary: of a URL, of sentinels, of a Redis Cluster."""
