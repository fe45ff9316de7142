"""The voices that clients may name, and those that are kept."""
