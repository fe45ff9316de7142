"""The cells of a pipeline, as a gateway sees them."""
