"""Runs a pipeline as processes of this machine: `syrinx up`."""
