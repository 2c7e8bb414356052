"""The dashboard: its panels as data, and the JSON that Grafana reads."""
