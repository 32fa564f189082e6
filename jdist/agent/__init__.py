"""Floor 2: the agent, one per node. It dials the controller, starts and watches workers, merges their messages."""
