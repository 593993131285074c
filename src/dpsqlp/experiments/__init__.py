"""The paper's experiments, on the real system: files in, durable state, files out."""
