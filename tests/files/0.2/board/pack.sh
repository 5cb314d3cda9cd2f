#!/bin/sh
# Packs conv_venus_chip.onnx for venus into conv_venus.pkg; needs the vendor's packer,
# tpacker, on the PATH. The program finds its header in front of each package: see README.md.
set -eu
cd "$(dirname "$0")"

finish() { # package file, 56 bytes in octal
  {
    printf "$2"
    gzip -c "$1.raw" | tail -c 8 # CRC-32 and size
    cat "$1.raw"
    dd if=/dev/zero bs=1 count=$(((64 - $(wc -c < "$1.raw") % 64) % 64)) 2>/dev/null
  } > "$1"
  rm "$1.raw"
}

tpacker -g conv_venus_chip.onnx -p venus -d False -o conv_venus.pkg
mv conv_venus.pkg conv_venus.pkg.raw
finish conv_venus.pkg '\114\116\107\122\120\113\107\061\166\145\156\165\163\000\000\000\000\000\000\000\063\056\060\056\064\000\000\000\000\000\000\000\000\000\000\000\161\107\313\151\226\222\051\111\000\000\000\000\000\000\000\000\000\000\000\000'
