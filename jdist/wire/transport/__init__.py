"""Connect processes: sockets, keys, ports, invitations, and streams that survive their connections.

The edges of client, controller, agent and worker call this room. No other module makes a socket.
"""
