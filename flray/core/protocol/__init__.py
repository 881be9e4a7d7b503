"""The round protocol: what an algorithm implements, what it may read, and when it is called."""
