"""Carry what ranks write and answer to the controller: output, merged over the node's ranks, and replies to queries.

The agent's handlers call this room with each message of a kernel. It knows processes only by the numbers of their
workers, and answers itself what no rank has to be asked for.
"""
