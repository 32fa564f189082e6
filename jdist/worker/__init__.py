"""Floor 2, inside each rank's ipykernel."""
