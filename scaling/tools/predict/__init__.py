"""`python -m scaling predict`: what world sizes that nobody measured would do, each with its 80 % interval."""
