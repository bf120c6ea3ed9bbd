"""What is going on."""
