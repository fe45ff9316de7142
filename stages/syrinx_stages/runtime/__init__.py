"""What every stage process shares: claims, publishing, settings, health, metrics, drain and the entry point."""
