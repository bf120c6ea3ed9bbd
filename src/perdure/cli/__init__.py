"""The command line. Thin: each command finds the database, asks `app` or `ops`, and prints."""
