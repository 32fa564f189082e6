"""Lifecycle: starts a cluster or attaches to one, changes its nodes and ranks, and ends it."""
