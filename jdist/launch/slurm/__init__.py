"""Slurm: a step of the job around the notebook, or a job of its own."""
