"""Start, replace and end a node's worker processes, and explain how they ended.

The agent's handlers and its queries call this room. Processes are forked from a forkserver that has imported torch, or
begin as interpreters of their own. The room reads what the kernel and the driver report about them.
"""
