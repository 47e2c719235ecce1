"""`python -m scaling predict register`: what points of a sweep will do, before it measures them."""
