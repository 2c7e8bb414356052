"""Network namespaces in place of containers. Needs root, and Debian's iproute2."""

import subprocess


def ip(*words: str) -> str:
    """Run a command of iproute2."""
    finished = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, f"ip {' '.join(words)}: {finished.stderr}"
    return finished.stdout
