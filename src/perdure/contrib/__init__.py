"""For other programs that share a database with Perdure."""
