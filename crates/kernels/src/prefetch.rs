//! Fetching cache lines before they are needed. Hints: no address is wrong, and results never depend on them.

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// How far ahead of its use a stream is fetched into the first-level cache, in bytes.
pub(crate) const NEAR: usize = 1024;
/// How far ahead it is fetched into the second-level cache. Each distance alone leaves a tenth of the memory's
/// bandwidth unused: the far one hides the memory's latency, the near one the second-level cache's.
pub(crate) const FAR: usize = 4096;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Fetches the cache line at `address` into the first-level cache.
#[inline(always)]
pub(crate) fn near(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction, and it never faults.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Fetches the cache line at `address` into the second-level cache.
#[inline(always)]
pub(crate) fn second_level(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction, and it never faults.
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Fetches the cache line at `address`, which will be written soon.
#[inline(always)]
pub(crate) fn for_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU takes the instruction, some as one without effect, and it never faults.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Fetches what follows `address` in a stream.
#[inline(always)]
pub(crate) fn stream(address: *const u8) {
    second_level(address.wrapping_add(FAR));
    near(address.wrapping_add(NEAR));
}
