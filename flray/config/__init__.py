"""What a configuration says: its keys, its overrides, and how a YAML file becomes an `Experiment`."""
