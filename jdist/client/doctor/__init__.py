"""Doctor: a cluster's nodes are examined, each and each pair; what differs is said, and what that will break."""
