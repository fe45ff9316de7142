"""Trains the talker."""
