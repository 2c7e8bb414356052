"""Lower precision, and the proof that its answers are near to those of fp32.

request    what `archive.sh` was asked for, checked
staging    the step of a build: proofs and int8 graph out of the cache, or made
inputs     a user's folder or file, or an example's samples -> payloads, as a client would send them
answers    payloads -> the task's own hooks, on an engine -> what can be compared; two of them -> a Proof
prove      bf16 for every archive that OpenVINO runs, int8 where it was asked for; refused below the bar
quantise   a program of its own, where NNCF is -> model-int8.xml
"""
