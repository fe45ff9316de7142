"""The model of a pipeline, and the choice of its settings."""
