"""The fields of requests for speech, as clients of this API and of others send them."""
