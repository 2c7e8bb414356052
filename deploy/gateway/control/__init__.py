"""The control process: Envoy's files, the Open Inference Protocol's answers about models, the page, and decisions."""
