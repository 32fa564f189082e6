"""Form, cut and re-form a rank's process groups, and point old handles at new groups.

The control thread calls this room with each generation of the world. It knows gloo's connections, torch's registries
and the rendezvous store, and nothing of cells.
"""
