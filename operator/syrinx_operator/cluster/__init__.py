"""TTSPipelines on Kubernetes: pure planning and status (`plan`, `status`), and the operator process."""
