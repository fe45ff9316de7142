"""The WebSocket on which text arrives in pieces."""
