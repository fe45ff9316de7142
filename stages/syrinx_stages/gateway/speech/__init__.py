"""One request for speech, from its fields to its audio and its outcome."""
