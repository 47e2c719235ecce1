"""What is said between processes and what is kept on disk."""
