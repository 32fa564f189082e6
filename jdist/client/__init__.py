"""Floor 4: the Python API. Notebook, command line and JupyterLab's server are equal clients."""
