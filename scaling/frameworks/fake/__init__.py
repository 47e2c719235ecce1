"""A scripted strategy without a framework: it sleeps, fails and counts on command."""
