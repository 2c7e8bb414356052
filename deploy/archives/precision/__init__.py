"""Fidelity in fp32, and lower precision with the proof that its answers are near to those of fp32.

request    the options of `archive`, checked, and the step of a build: results from the cache, or made
inputs     a user's folder or file, or an example's samples -> payloads, as a client would send them
prove      the archive in fp32 against the library that owns its model: text_ and image_fidelity, references
           bf16 for every archive that OpenVINO runs, and samples for other processors
int8       on request, rejected below the bar; quantise, a program in the environment that has NNCF -> model-int8.xml
"""
