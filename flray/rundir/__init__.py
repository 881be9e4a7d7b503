"""A run on disk: its folder and lock, tables, checkpoints, its mirror in a storage, and `Run`, which reads it all."""
