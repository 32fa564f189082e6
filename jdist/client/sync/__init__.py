"""Sync: local code is listed, compared with what nodes have, and sent where it is lacking."""
