#!/bin/sh
# Packs stream_arcs_chip.onnx for arcs into stream_arcs.pkg; needs the vendor's packer, tpacker, on the PATH.
set -eu
cd "$(dirname "$0")"
tpacker -g stream_arcs_chip.onnx -p arcs -d False -o stream_arcs.pkg
