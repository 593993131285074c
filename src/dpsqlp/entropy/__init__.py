"""The only source of randomness: the secret, keyed identifiers and keyed noise."""
