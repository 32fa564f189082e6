"""Core: the types, messages and rules that all floors share. No I/O, no clock, no randomness."""

__version__ = "0.1.0"
