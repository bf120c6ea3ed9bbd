"""What runs by the clock: when a schedule is due, and what becomes of each planned instant."""
