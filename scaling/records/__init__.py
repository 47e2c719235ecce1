"""Messages between processes, and records on disk."""
