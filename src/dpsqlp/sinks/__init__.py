"""Where releases go. A release given again for the same trigger is left as it is."""
