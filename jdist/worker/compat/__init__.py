"""Use what torch, IPython and ipykernel keep private; no other module of the worker does.

Each access is part of a :class:`~jdist.worker.compat.features.Feature`, so that a release without the name costs that
feature alone. All rooms of the worker call this one.
"""
