"""How requests, codes and audio travel between stages."""
