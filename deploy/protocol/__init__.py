"""The Open Inference Protocol's documents, messages and errors, for the gateway and for deploy.hosts.frontend. Pure."""
