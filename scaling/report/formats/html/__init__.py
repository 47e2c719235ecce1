"""The report as one self-contained page that works offline and without scripts."""
