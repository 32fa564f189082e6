"""Hold what the controller knows: the world, its runs and their records, with the phases of each. Pure.

All rooms of the controller read and change the model. It calls none of them.
"""
