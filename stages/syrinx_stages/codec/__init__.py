"""The codec stage: code frames in, PCM out."""
