"""A run on disk: its folder and lock, tables, checkpoints, the mirror in a storage, and the record that reads it all
back."""
