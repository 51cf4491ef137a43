//! The floating-point environment that the arithmetic is defined in.
//!
//! A host program may have set another rounding direction or have denormals flushed to zero; either
//! would change results. Code that computes holds a [`Guard`]; worker threads of
//! [`crate::pool::Pool`] always do.

use std::marker::PhantomData;

/// While it lives, this thread rounds to nearest even and keeps denormals; what was set before comes
/// back when it is dropped. On architectures other than x86-64 it does nothing.
#[derive(Debug)]
#[must_use = "the environment is restored when the guard is dropped"]
pub struct Guard {
    /// What to restore, if anything had to be changed.
    before: Option<u32>,
    /// The environment belongs to a thread, so the guard must stay on it.
    on_this_thread: PhantomData<*const ()>,
}

impl Guard {
    /// Sets the standard environment on this thread.
    #[inline]
    pub fn new() -> Self {
        let current = control::read();
        let standard = control::is_standard(current);
        if !standard {
            control::write(control::STANDARD);
        }
        Self {
            before: (!standard).then_some(current),
            on_this_thread: PhantomData,
        }
    }
}

impl Default for Guard {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            control::write(before);
        }
    }
}

/// Whether this thread is in the standard environment now.
#[must_use]
pub fn is_standard() -> bool {
    control::is_standard(control::read())
}

#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    /// MXCSR as a process starts with it: all exceptions masked, round to nearest, denormals kept.
    pub(super) const STANDARD: u32 = 0x1f80;
    /// The sticky exception flags, which say what happened and change nothing.
    const FLAGS: u32 = 0x3f;

    pub(super) fn is_standard(mxcsr: u32) -> bool {
        mxcsr & !FLAGS == STANDARD
    }

    #[inline]
    pub(super) fn read() -> u32 {
        let mut mxcsr = 0_u32;
        // SAFETY: stores four bytes to a local variable; every x86-64 CPU has SSE.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags)) };
        mxcsr
    }

    #[inline]
    pub(super) fn write(mxcsr: u32) {
        // SAFETY: `mxcsr` is the standard value or one read before, so no reserved bit is set.
        unsafe {
            asm!("ldmxcsr [{}]", in(reg) &raw const mxcsr, options(nostack, preserves_flags))
        };
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod control {
    pub(super) const STANDARD: u32 = 0;

    pub(super) fn is_standard(_: u32) -> bool {
        true
    }

    pub(super) fn read() -> u32 {
        STANDARD
    }

    pub(super) fn write(_: u32) {}
}
