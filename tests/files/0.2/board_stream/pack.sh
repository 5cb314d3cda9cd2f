#!/bin/sh
# Packs stream_arcs_chip.onnx for arcs into stream_arcs.pkg; needs the vendor's packer,
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

tpacker -g stream_arcs_chip.onnx -p arcs -d False -o stream_arcs.pkg
mv stream_arcs.pkg stream_arcs.pkg.raw
finish stream_arcs.pkg '\114\116\107\122\120\113\107\061\141\162\143\163\000\000\000\000\000\000\000\000\063\056\060\056\064\000\000\000\000\000\000\000\000\000\000\000\150\022\110\332\227\325\152\012\000\000\000\000\000\000\000\000\000\000\000\000'
