// Included before every C++ file of llama.cpp. GCC before 12.4 and 13.3 tells the optimizer neither that loading a
// tile configuration reads 64 bytes nor that loading a tile reads memory (GCC bug 114098), so it drops the stores
// before them, and llama.cpp dies of a general protection fault at its first AMX product. With right constraints
// AMX machines can be measured with that compiler too.
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ < 12 || (__GNUC__ == 12 && __GNUC_MINOR__ < 4) || (__GNUC__ == 13 && __GNUC_MINOR__ < 3)

#include <immintrin.h>

static inline void tile_loadconfig_of_64_bytes(const void *config) {
    __asm__ volatile("ldtilecfg\t%X0" ::"m"(*(const char(*)[64])config));
}
#define _tile_loadconfig tile_loadconfig_of_64_bytes

#undef _tile_loadd_internal
#define _tile_loadd_internal(tile, base, stride)                                                    \
    __asm__ volatile("{tileloadd\t(%0,%1,1), %%tmm" #tile "|tileloadd\t%%tmm" #tile ", [%0+%1*1]}" \
                     ::"r"((const void *)(base)), "r"((long)(stride))                               \
                     : "memory")

#endif
#endif
