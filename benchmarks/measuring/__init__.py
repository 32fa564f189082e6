"""What the benchmarks share: pairs and tables, and a front end."""
