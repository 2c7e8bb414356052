"""The control process: Envoy's files, answers about models, the page, and operators' decisions."""
