"""Routes whose answers are vectors, or scores made of them."""
