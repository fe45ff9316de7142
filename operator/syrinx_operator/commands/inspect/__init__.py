"""`syrinx status` and `syrinx logs`: a pipeline on a Kubernetes cluster."""
