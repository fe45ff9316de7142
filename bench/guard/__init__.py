"""Measures how well the talker finds segments that went wrong, and how rarely it takes healthy speech for one."""
