"""`syrinx bench`: load on a pipeline, and what its listeners would have heard."""
