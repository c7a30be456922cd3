"""The kernel's own queue (io_uring, through ctypes): for syncs, and to send the same bytes to many sockets."""
