"""What travels with a job: a function's arguments and results as JSON, and back."""
