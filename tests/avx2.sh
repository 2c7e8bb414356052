#!/usr/bin/env bash
# Runs a command as on a processor with AVX2 but no newer instructions: tests/avx2.sh make check
#
# ONEDNN_MAX_CPU_ISA       oneDNN's kernels in torch and OpenVINO. torch then has no bf16. OpenVINO still reports bf16 and
#                          fails on the first convolution in bf16, so a preloaded library replaces its functions that
#                          detect instructions.
# ATEN_CPU_CAPABILITY      torch's own kernels.
# CT2_FORCE_CPU_ISA        CTranslate2's own kernels, which use at most AVX2 in any case.
# MKL_ENABLE_INSTRUCTIONS  products of matrices in torch and CTranslate2. int8 products are then summed in 16 bits and
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
