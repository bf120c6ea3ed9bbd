"""For those who test against Perdure. `contract` is the suite every store must pass."""
