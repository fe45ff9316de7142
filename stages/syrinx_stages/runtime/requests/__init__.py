"""The requests that a replica owns, and the loop that serves them."""
