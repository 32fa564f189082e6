"""Profile: a cell's operators, recorded by torch.profiler within limits on memory and time."""
