"""Variables: what names on the ranks stand for, and how values move."""
