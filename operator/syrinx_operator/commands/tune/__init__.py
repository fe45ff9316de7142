"""`syrinx tune`: what a pipeline's tuning does, in words, live and as a picture."""
