"""Move bulk bytes past the control messages: the controller's data port, and probes of the paths between nodes.

The controller serves the port; agents and clients transfer through it. Transfers are streams of bytes with a token;
``wire/values`` knows what they mean.
"""
