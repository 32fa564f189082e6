"""ssh: agents on hosts that the user can log in to."""
