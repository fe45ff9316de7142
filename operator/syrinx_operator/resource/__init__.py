"""The TTSPipeline resource: its types, validation rules, CRD and reference, and the status types. Pure."""
