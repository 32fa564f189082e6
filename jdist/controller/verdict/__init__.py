"""Find out from what ranks report why a run cannot finish, and say so in English. Pure.

``controller/runs`` calls this room with the answers of one poll. It knows neither the model nor time.
"""
