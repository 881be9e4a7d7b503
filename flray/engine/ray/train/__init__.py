"""Centralized training: one model on all data, by Ray Train on several processes."""
