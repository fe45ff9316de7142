"""Writes numbers and the like as words that are spoken: of whole texts, and of texts that arrive in pieces. Pure."""
