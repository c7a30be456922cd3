"""The commands for those who run servers, and those about the command itself."""
