"""A pod that runs a talker and a codec."""
