"""Launchers and schedulers: the variables that they set, the place of a task among its launcher's, and Slurm's jobs."""
