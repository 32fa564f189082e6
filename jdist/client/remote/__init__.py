"""Reach the clusters of another host through one ssh login: its tunnel, which is opened again when it breaks.

The lifecycle calls this room. It calls the tunnel of wire, and ssh's command line; the other end is `client/serve.py`.
"""
