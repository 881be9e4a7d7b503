"""All that flray uses of Ray beyond its public API: imported lazily, each use with a probe and a fallback."""
