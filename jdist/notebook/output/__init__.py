"""Show a run: merge what its ranks write into one view, and render that as text, HTML and JSON.

The magics, the verbs and the Jupyter server call this room with the messages of a run. Only the screens and displays
in it know IPython.
"""
