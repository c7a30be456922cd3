"""What each route does: one module per noun. A handler takes a Call and answers it, at once or from a coroutine."""
