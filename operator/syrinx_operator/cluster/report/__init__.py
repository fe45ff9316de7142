"""What the operator reports of a pipeline: its status and Events."""
