"""Small runs that leak on purpose, with what leakscope says of them."""
