"""The widget panel: a cluster looked at and steered in a notebook, with ipywidgets only. Imported when it is opened."""
