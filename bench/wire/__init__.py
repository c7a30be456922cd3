"""The load's side: clients, and the server that does nothing, against which a client shows what it can."""
