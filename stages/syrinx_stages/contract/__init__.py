"""What both planes agree on: messages, keys, settings and metrics. Imports neither torch, redis nor kopf."""
