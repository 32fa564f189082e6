"""The jupyter-server extension: this user's clusters for a browser."""
