"""Where releases go. A release given again for the same trigger replaces itself."""
