"""Where handlers run: on an event loop, in threads, in child processes."""
