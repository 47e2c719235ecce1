"""A report as text for a terminal, Markdown, CSV or JSON."""
