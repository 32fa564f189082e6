"""Say what a rank's names hold: list, describe, complete, compare and copy them.

Queries call this room on a helper thread, while cells may run; assembling and restoring are cells on all ranks.
"""
