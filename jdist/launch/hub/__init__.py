"""JupyterHub: named servers of the same user as nodes."""
