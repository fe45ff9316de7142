"""What is learned: texts, their audio and its codes."""
