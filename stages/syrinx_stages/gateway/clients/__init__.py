"""Who asks, and what they may use: API keys, limits, web pages."""
