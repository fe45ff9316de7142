"""Benchmark of text that streams in: audio under random cuts and kill -9, time to first audio, and cancellation."""
