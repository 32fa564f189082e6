"""The worker: what runs inside each rank's ipykernel."""
