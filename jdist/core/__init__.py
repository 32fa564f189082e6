"""Floor 0: pure words. No I/O, no clock, no randomness."""

__version__ = "0.1.0"
