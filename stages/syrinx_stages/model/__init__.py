"""Qwen3-TTS 12 Hz as plain torch modules whose parameter names are the official checkpoints'."""
