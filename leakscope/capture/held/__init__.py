"""Is all tensor memory certainly held by something alive? Asked in milliseconds, before anybody takes a look."""
