"""Turn the configuration and the launch's hosts into points and tasks."""
