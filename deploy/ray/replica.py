"""The replica of an archive, under its earlier name."""

from deploy.frontend.replica import Replica, Unhealthy

__all__ = ["Replica", "Unhealthy"]
