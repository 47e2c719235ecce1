"""Drawings of figures by matplotlib: SVG for the page; SVG, PNG and PDF alone."""
