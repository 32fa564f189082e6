"""Measure: a run's trace and profile, and the cluster's resources, as text, HTML, SVG, JSON and files."""
