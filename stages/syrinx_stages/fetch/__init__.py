"""Downloads a checkpoint's files from a Hugging Face hub before a stage starts."""
