"""Keep a rank's names beyond its process: in memory for its successor, or in a folder for another day.

A process that fails hands over (``handover``, ``to_memory``, ``from_memory``); cells of jdist's own save and load
(``to_folder``, ``from_folder``). Both stand on one pickler.
"""
