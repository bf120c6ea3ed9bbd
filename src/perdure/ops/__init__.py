"""Questions about jobs, workers and the database, and repairs. Called by `app` and the command line."""
