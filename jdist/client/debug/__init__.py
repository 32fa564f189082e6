"""Debugging: ranks are paused, looked into and continued."""
