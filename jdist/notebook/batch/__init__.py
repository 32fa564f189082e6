"""Run a script as a batch job, ``jdist run``: a cluster of its own, plain output, an exit code.

The command line calls this room. It starts the cluster with the verb's code and follows one run.
"""
