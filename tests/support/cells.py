"""Cells that several tests run to see that ranks are there and reach each other."""

ALL_REDUCE = "_t = torch.ones(1); dist.all_reduce(_t); _t.item()"
"""What all ranks give: the world's size."""
SEND = """
t = torch.zeros(1)
if rank == 0:
    dist.send(t + 7, 3)
elif rank == 3:
    dist.recv(t, 0)
t.item()
"""
"""What rank 3 gives: 7. It is on another node than rank 0 in a world of two nodes of two ranks."""
WHERE = "import os, socket; socket.gethostname(), local_rank"
"""The name of the rank's host, and its number there."""
