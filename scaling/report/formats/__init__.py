"""Formats of a report: terminal, Markdown, LaTeX, CSV, JSON, page and figures."""
