"""Measure: a run's trace, profile and metrics, and the cluster's resources, as text, HTML, SVG, JSON and files."""
