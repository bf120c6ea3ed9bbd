"""The SQL store: statements written as SQL, operations as generators, one small dialect and driver per database."""
