"""Names of LISTENAI's SDKs that firmware needs around a deployed program, by chip.

They were read in the vendor's published examples, and never tried on a board.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..targets.board_support import BoardSupport

__all__ = ["BOARD_SUPPORT"]

# The functions take a uint32_t pointer and round to lines of the cache themselves.
_CLEAN_CACHE = "HAL_FlushDCache_by_Addr((uint32_t *)(uintptr_t)(data), (uint32_t)(bytes))"
_INVALIDATE_CACHE = "HAL_InvalidateDCache_by_Addr((uint32_t *)(uintptr_t)(data), (uint32_t)(bytes))"

#: By the name that the packer has for the chip.
BOARD_SUPPORT: Mapping[str, BoardSupport] = {
    "arcs": BoardSupport(
        source="the vendor's published examples for arcs, which run with the data cache off",
        includes=(
            "ClockManager.h",
            "arcs_ap.h",
            "cache.h",
            "dma_cpy.h",
            "luna/luna.h",
            "sysutils.h",
        ),
        shared_section='__attribute__((section(".thinker.apram.noinit")))',
        psram_section="__psram_noinit__",
        clean_cache=_CLEAN_CACHE,
        invalidate_cache=_INVALIDATE_CACHE,
        cache_off=("HAL_FlushDCache();", "HAL_DisableDCache();"),
        start=(
            "__HAL_CRM_LUNA_CLK_ENABLE();",
            "enable_GINT();",
            "luna_init();",
            "dma_init(ALG_DMA_CH);",
        ),
    ),
    "venusa": BoardSupport(
        source="the vendor's published drivers for venusA",
        includes=("cache.h",),
        clean_cache=_CLEAN_CACHE,
        invalidate_cache=_INVALIDATE_CACHE,
    ),
}
