"""Messages: frozen tagged Structs that cross a socket, by idea. ``protocol`` says in which direction each travels.

A client submits a RunCell; Output and RankDone come back. Each rank answers a RankQuery with a RankReply, each node's
agent a NodeQuery with a NodeReply.
"""
