"""Turn messages and Python values into bytes and back, with large buffers kept apart.

Every floor above calls this room. Nothing in it opens a connection.
"""
