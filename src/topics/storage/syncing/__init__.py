"""fdatasync without blocking the event loop: by the kernel's own queue, or by a helper process."""
