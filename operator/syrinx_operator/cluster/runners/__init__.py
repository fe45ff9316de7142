"""What works across reconciliations: the tuner and canaries."""
