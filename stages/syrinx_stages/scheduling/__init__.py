"""What talkers and codecs do next, and how much they can serve. Pure, and without torch."""
