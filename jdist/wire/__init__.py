"""Floor 1: bytes. The only place that makes sockets."""
