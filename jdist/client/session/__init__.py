"""The session on the ranks: named groups and meshes, and how it is saved and loaded."""
