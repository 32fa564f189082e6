"""Floor 5: what a user types and sees, in a notebook and in a terminal."""
