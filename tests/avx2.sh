#!/usr/bin/env bash
# Run a command as if the processor had AVX2 and nothing newer: tests/avx2.sh make check
#
# ONEDNN_MAX_CPU_ISA       torch and OpenVINO: kernels of oneDNN. torch then has no bf16; OpenVINO says that it has,
#                          and fails on the first convolution in it, so that its questions are answered by a library
#                          that is loaded before it.
# ATEN_CPU_CAPABILITY      torch: its own kernels.
# CT2_FORCE_CPU_ISA        CTranslate2: its own kernels, which are those of AVX2 in any case.
# MKL_ENABLE_INSTRUCTIONS  torch and CTranslate2: products of matrices. Those of int8 add up in 16 bits then, and
#                          saturate, as on processors without VNNI.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
for asked in 20with_cpu_x86_avx512f 21with_cpu_x86_bfloat16 22with_cpu_x86_avx2_vnni 24with_cpu_x86_avx2_vnni_2 \
    24with_cpu_x86_avx512_core 28with_cpu_x86_avx512_core_amx 29with_cpu_x86_avx512_core_fp16 \
    29with_cpu_x86_avx512_core_vnni 33with_cpu_x86_avx512_core_amx_bf16 33with_cpu_x86_avx512_core_amx_fp16 \
    33with_cpu_x86_avx512_core_amx_int8; do
    echo "int _ZN2ov${asked}Ev(void) { return 0; } // ov::${asked#??}()"
done >"$folder/avx2.c"
cc -shared -fPIC -o "$folder/avx2.so" "$folder/avx2.c"

LD_PRELOAD="$folder/avx2.so" ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 CT2_FORCE_CPU_ISA=AVX2 \
    MKL_ENABLE_INSTRUCTIONS=AVX2 "$@"
