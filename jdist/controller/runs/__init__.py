"""Run cells: accept, queue, start, interrupt, pause, poll, compare and save them. Pure.

:class:`~jdist.controller.state.State` calls this room with messages and with the time. It asks ``verdict`` why a run
makes no progress.
"""
