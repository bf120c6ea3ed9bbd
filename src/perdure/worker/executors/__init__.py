"""Where handlers run: `loop` for coroutines, `threads` for plain functions, `processes` for isolation="process"."""
