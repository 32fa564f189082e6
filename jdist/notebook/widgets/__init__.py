"""Widgets of ranks in the notebook: what ranks display with ipywidgets, alive in both directions.

`models` mirrors the widgets of all ranks, `twins` are widgets of the notebook's own that stand for them, `views` are
their places in outputs, and `rank_widgets` decides which ranks a twin stands for. Called by ``notebook/output`` for
what cells display, and by the session; it calls ``client/comms``.
"""
