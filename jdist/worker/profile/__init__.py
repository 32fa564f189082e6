"""Profile: a cell's operators, recorded by torch.profiler within limits of memory and time."""
