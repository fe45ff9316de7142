"""Talker and codec of a pipeline in one process: code frames are handed over in memory, and written to Redis behind."""
