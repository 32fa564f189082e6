"""Start processes: forked from a forkserver that has imported torch, or as fresh interpreters.

``agent/processes`` calls this room for each worker and helper. The forkserver runs nothing but what it forks.
"""
