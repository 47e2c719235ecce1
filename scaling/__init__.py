"""How well data-parallel training scales, why not better, and what would help."""

__version__ = "0.1.0"
