"""What answers say to those who look around: `sights` of topics, `surveys` of the server as a whole."""
