"""Sync: local code is listed, compared with the nodes' copies, and sent to nodes that lack it."""
