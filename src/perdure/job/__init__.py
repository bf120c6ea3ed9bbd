"""What a job is: its states, its values, and the pure functions that decide what becomes of it."""
