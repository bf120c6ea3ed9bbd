"""Keeps work moving: what a worker does besides running jobs."""
