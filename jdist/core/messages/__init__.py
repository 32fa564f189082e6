"""Messages: frozen tagged Structs that cross a socket, by idea. ``protocol`` says in which direction each travels.

A cell goes down as Cell, its output comes up as Output, its end as Done. A question to a rank goes down as Ask with one
typed ``op`` and comes back as one Answer per rank; one to nodes as AskNodes, answered by their agents with NodeAnswers.
"""
