"""Start, replace and end a node's worker processes, and explain how they ended.

The agent's handlers and its queries call this room. It starts processes through ``starters`` and reads what the kernel
and the driver report about them.
"""
