"""Profile: what torch.profiler recorded on each rank, on one clock, and where the ranks' time went."""
