"""Lower precision, and the proof that its answers are near to those of fp32.

wanted     what `archive.sh` was asked for, checked
inputs     a user's folder or file, or an example's samples -> payloads, as a client would send them
answers    payloads -> the task's own hooks, on an engine -> what can be compared; two of them -> a Proof
quantise   a program of its own, where NNCF is -> model-int8.xml
search     which layers stay in floating point, where int8 moves too many answers
int8       all of that, for `archive.sh --precision int8`
bf16       the same proof, for every archive that OpenVINO runs
"""
