"""Doctor: examines a cluster's nodes and the paths between them, and reports differences and their effects."""
