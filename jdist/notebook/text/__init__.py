"""Put facts into words and markup: lines, clusters, diagnoses, suggested actions.

All rooms of the notebook, and the Jupyter server, call this room. It asks no cluster anything.
"""
