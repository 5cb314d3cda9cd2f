#!/bin/sh
# Packs conv_venus_chip.onnx for venus into conv_venus.pkg; needs the vendor's packer, tpacker, on the PATH.
set -eu
cd "$(dirname "$0")"
tpacker -g conv_venus_chip.onnx -p venus -d False -o conv_venus.pkg
