"""Pause a rank in its code, let cells run in a frame, step, and keep the frames of the last failure.

The control thread and breakpoints call this room. It runs cells through ``worker/cells``.
"""
