"""Flows as users hold them: what is planned, references to results, conditions, and a flow as it was read."""
