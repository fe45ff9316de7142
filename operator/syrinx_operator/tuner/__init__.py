"""Finds the settings that serve listeners best, while they listen. All but `runner` is pure."""
