"""Child processes: they die with their parent, and share a GPU."""
