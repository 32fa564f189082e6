"""Metrics: what the ranks of a run have logged, as tables, charts and small pictures."""
