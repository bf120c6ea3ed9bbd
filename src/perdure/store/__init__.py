"""Where a job lives: the protocols a store fulfils, and the SQL store that fulfils them."""
