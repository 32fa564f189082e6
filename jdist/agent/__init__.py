"""Floor 2: the agent, one per node. It dials the controller, starts and watches its workers, merges what they say."""
