"""Formats, speed and pauses of the audio."""
