"""What the stages' counters show."""
