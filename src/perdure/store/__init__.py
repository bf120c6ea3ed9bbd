"""Where jobs are kept: the protocols of a store, and the SQL store that implements them."""
