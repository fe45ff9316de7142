"""The code that all stage processes share: claims, publishing, settings, health, metrics, drain and the entry point."""
