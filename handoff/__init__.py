"""What five LLM inference frameworks do after a prefix-cache hit, exactly."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("handoff")
