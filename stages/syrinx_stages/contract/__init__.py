"""Definitions shared by the operator and the stages: messages, keys, settings, metrics. No torch, redis or kopf."""
