"""The speech tokenizer: codes to audio, and audio to codes."""
