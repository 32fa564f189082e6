"""See what a rank does in torch.distributed without its main thread's help.

The control thread and queries call this room while a cell runs. The call log records calls in their own threads;
everything else is read.
"""
