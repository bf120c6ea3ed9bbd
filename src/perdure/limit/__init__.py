"""How much at once: limits and rates as users write them, keys, and who may start. Pure: no clock, no database."""
