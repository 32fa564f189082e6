"""Trace: the calls of torch.distributed that ranks made in a run, and the waiting they caused each other."""
