"""Ray: one agent on each node of an existing cluster."""
