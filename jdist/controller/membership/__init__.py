"""Decide who belongs to the cluster. Pure.

Nodes join, are lost and leave; ranks are replaced; the world is formed anew. :class:`~jdist.controller.state.State`
calls this room with messages and with the time. It changes the model, and ends the runs that a loss concerns.
"""
