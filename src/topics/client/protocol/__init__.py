"""The protocol without a socket: what to send, how to read what comes back, when to try again, where to go on."""
