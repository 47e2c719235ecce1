"""What a person sees while a sweep runs."""
