"""The register command: predictions for points of a sweep before they are measured."""
