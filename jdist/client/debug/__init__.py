"""Debugging: pausing, inspecting and resuming ranks."""
