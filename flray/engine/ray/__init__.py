"""The engine on Ray: actors, the pool that keeps them at work, the cluster. The only home of `import ray` in flray."""
