"""The fields of the resource, by part."""
