"""The one entropy gate: secret, keyed identifiers, keyed noise."""
