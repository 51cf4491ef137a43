//! Whether AMX-INT8 can be used: the CPU has it, the operating system saves its registers, and this process
//! may use them.

/// Whether the CPU, the operating system and this process are ready for AMX-INT8 tiles.
///
/// The first call asks the kernel for permission, for all threads of the process.
pub(super) fn is_ready() -> bool {
    #[cfg(target_os = "linux")]
    {
        static READY: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *READY.get_or_init(linux::ask)
    }
    #[cfg(not(target_os = "linux"))]
    false
}

#[cfg(target_os = "linux")]
mod linux {
    use std::arch::x86_64::{__cpuid_count, __get_cpuid_max, _xgetbv};

    /// CPUID leaf 7, EDX: AMX-TILE and AMX-INT8.
    const TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
    /// XCR0: the state of the tile configuration and of the tiles.
    const TILE_STATE: u64 = 1 << 17 | 1 << 18;
    /// `arch_prctl` code that asks for a state component which is not granted by default.
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    /// The component: the tiles.
    const XFEATURE_XTILEDATA: libc::c_long = 18;

    pub(super) fn ask() -> bool {
        // AVX tells that the operating system uses XSAVE.
        if !is_x86_feature_detected!("avx") || !is_x86_feature_detected!("xsave") {
            return false;
        }
        if __get_cpuid_max(0).0 < 7 {
            return false;
        }
        if __cpuid_count(7, 0).edx & TILE_AND_INT8 != TILE_AND_INT8 {
            return false;
        }
        // SAFETY: the CPU and the operating system have XSAVE, as just checked.
        if unsafe { saved_states() } & TILE_STATE != TILE_STATE {
            return false;
        }
        // SAFETY: the call takes two numbers and touches no memory of ours.
        unsafe {
            libc::syscall(
                libc::SYS_arch_prctl,
                ARCH_REQ_XCOMP_PERM,
                XFEATURE_XTILEDATA,
            ) == 0
        }
    }

    /// XCR0: the register states that the operating system saves.
    ///
    /// # Safety
    /// The CPU and the operating system must have XSAVE.
    #[target_feature(enable = "xsave")]
    unsafe fn saved_states() -> u64 {
        // SAFETY: as the caller vouches.
        unsafe { _xgetbv(0) }
    }
}
