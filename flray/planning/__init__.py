"""A plan of an experiment on a cluster, before it is paid for: see `README.md`."""
