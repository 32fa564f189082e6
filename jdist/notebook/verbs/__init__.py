"""The verbs of ``%dist`` and ``jdist``, in the order in which they are listed; each module registers its own."""

# ruff: noqa: F401, I001
from jdist.notebook.verbs.registry import VERBS, call, usage
from jdist.notebook.verbs import lifecycle, ranks, membership, values, debugging, code
from jdist.notebook.verbs import diagnosis

__all__ = ["VERBS", "call", "usage"]
