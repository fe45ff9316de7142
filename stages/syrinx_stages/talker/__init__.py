"""The talker stage: text in, code frames out."""
