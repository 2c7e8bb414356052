"""What a process holds, seen from outside."""

import os
import subprocess
import sys

from load.soak.resources import look

PROGRAM = """
import sys, threading, time
held = [bytearray(b"x" * 10**7) for _ in range(10)]
files = [open("/dev/null") for _ in range(20)]
threads = [threading.Thread(target=time.sleep, args=(60,), daemon=True) for _ in range(5)]
for thread in threads:
    thread.start()
print("ready", flush=True)
sys.stdin.read()
"""


def test_look_sees_memory_descriptors_and_threads_of_another_process() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        (seen,) = look(3.0, {"java": child.pid})
        assert child.stdin is not None
        child.stdin.close()
    assert (seen.at_s, seen.name, seen.pid, seen.threads) == (3.0, "java", child.pid, 6)
    assert seen.rss_mb > 100
    assert seen.descriptors >= 20 + 3


def test_look_leaves_out_a_process_that_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    assert [each.name for each in look(0.0, {"gone": child.pid, "here": os.getpid()})] == ["here"]
