"""Floor 2: the controller, one per cluster. It owns the truth: members, groups, generation, runs, deadlines."""
