"""The version, in one place of the code; pyproject.toml has it too, and a test holds them together."""

__version__ = "0.1.0"
