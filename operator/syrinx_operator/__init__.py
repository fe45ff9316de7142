"""The control plane: the TTSPipeline resource, what is planned from it, and the command line."""

from importlib.metadata import version

__version__ = version("syrinx")
