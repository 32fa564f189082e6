"""The client's part of resources: what nodes and ranks have used over time, from all nodes, as a table."""
