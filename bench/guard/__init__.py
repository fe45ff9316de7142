"""Measures how well the talker detects runaways, and how rarely it stops healthy speech."""
