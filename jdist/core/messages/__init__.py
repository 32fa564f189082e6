"""Messages: frozen tagged Structs that cross a socket, by idea. ``protocol`` says in which direction each travels."""
