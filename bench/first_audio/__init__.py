"""Time to the first audio of streamed text."""
