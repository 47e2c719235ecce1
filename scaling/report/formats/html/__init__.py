"""The report as one page: no request, no server, readable without scripts."""
