"""Floor 0: pure words. No I/O, no clock, no randomness."""
