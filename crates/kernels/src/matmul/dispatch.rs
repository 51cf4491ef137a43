//! From a format and an instruction set known at run time to the kernel compiled for them.
//!
//! The lists of target features must match what [`Isa::is_supported`] tests for.

#[cfg(target_arch = "x86_64")]
use super::amx::TileProduct;
use super::float::FloatProduct;
use super::quantized::PanelProduct;
use crate::formats::{Float, Quantized, Visitor};
use crate::isa::Isa;
use crate::lanes::SoftFma;
#[cfg(target_arch = "x86_64")]
use crate::lanes::{Avx2, Avx512, Scalar};
#[cfg(target_arch = "x86_64")]
use crate::packed::scales::Scales;

/// The instruction sets, and the reference compiled without hardware FMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Twin {
    SoftFma,
    #[cfg(target_arch = "x86_64")]
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Amx,
}

impl Twin {
    /// The twin for `isa`.
    ///
    /// # Panics
    /// When this CPU does not support it.
    pub(super) fn of(isa: Isa) -> Self {
        assert!(isa.is_supported(), "this CPU does not support {isa}");
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Self::Avx512,
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Self::Amx,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Self::Avx2,
            #[cfg(target_arch = "x86_64")]
            Isa::Scalar if is_x86_feature_detected!("fma") => Self::Scalar,
            _ => Self::SoftFma,
        }
    }
}

/// Runs `product`, of a quantised format.
pub(super) fn quantized(twin: Twin, product: &PanelProduct<'_>) {
    product.weight.format().visit(Run { twin, product });
}

/// Runs `product`, of a quantised format, by tiles.
///
/// # Panics
/// When this CPU does not support AMX.
#[cfg(target_arch = "x86_64")]
pub(super) fn tiles(product: &TileProduct<'_>) {
    assert!(Isa::Amx.is_supported(), "AMX is not supported here");
    product.weight.format().visit(Tiles(product));
}

/// Runs `product`, of a floating-point format.
pub(super) fn float(twin: Twin, product: &FloatProduct<'_>) {
    product.weight.format().visit(Run { twin, product });
}

struct Run<'a, P> {
    twin: Twin,
    product: &'a P,
}

impl Visitor for Run<'_, PanelProduct<'_>> {
    type Output = ();

    fn float<F: Float>(self) {
        unreachable!("{} is no quantised format", F::NAME);
    }

    fn quantized<F: Quantized>(self) {
        // SAFETY: `Twin::of` checked the CPU's features.
        unsafe {
            match self.twin {
                Twin::SoftFma => self.product.run::<F, SoftFma>(),
                #[cfg(target_arch = "x86_64")]
                Twin::Scalar => quantized_scalar::<F>(self.product),
                #[cfg(target_arch = "x86_64")]
                Twin::Avx2 => quantized_avx2::<F>(self.product),
                #[cfg(target_arch = "x86_64")]
                Twin::Avx512 | Twin::Amx => quantized_avx512::<F>(self.product),
            }
        }
    }
}

impl Visitor for Run<'_, FloatProduct<'_>> {
    type Output = ();

    fn float<F: Float>(self) {
        // SAFETY: `Twin::of` checked the CPU's features.
        unsafe {
            match self.twin {
                Twin::SoftFma => self.product.run::<F, SoftFma, false>(),
                #[cfg(target_arch = "x86_64")]
                Twin::Scalar => float_scalar::<F>(self.product),
                #[cfg(target_arch = "x86_64")]
                Twin::Avx2 => float_avx2::<F>(self.product),
                #[cfg(target_arch = "x86_64")]
                Twin::Avx512 | Twin::Amx => float_avx512::<F>(self.product),
            }
        }
    }

    fn quantized<F: Quantized>(self) {
        unreachable!("{} is no floating-point format", F::NAME);
    }
}

#[cfg(target_arch = "x86_64")]
struct Tiles<'a>(&'a TileProduct<'a>);

#[cfg(target_arch = "x86_64")]
impl Visitor for Tiles<'_> {
    type Output = ();

    fn float<F: Float>(self) {
        unreachable!("{} is no quantised format", F::NAME);
    }

    fn quantized<F: Quantized>(self) {
        assert!(!F::Scales::HALVES, "{} has no way over tiles", F::NAME);
        // SAFETY: `tiles` checked the CPU's features.
        unsafe { quantized_amx::<F>(self.0) }
    }
}

/// # Safety
/// The CPU must have the features, and AMX-INT8.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn quantized_amx<F: Quantized>(product: &TileProduct<'_>) {
    // SAFETY: as the caller vouches.
    unsafe { product.run::<F>() }
}

macro_rules! compiled_for {
    ($features:literal, $lanes:ty, $wide:literal, $quantized:ident, $float:ident) => {
        /// # Safety
        /// The CPU must have the features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $quantized<F: Quantized>(product: &PanelProduct<'_>) {
            // SAFETY: as the caller vouches.
            unsafe { product.run::<F, $lanes>() }
        }

        /// # Safety
        /// The CPU must have the features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $float<F: Float>(product: &FloatProduct<'_>) {
            // SAFETY: as the caller vouches.
            unsafe { product.run::<F, $lanes, $wide>() }
        }
    };
}

compiled_for!("fma", Scalar, false, quantized_scalar, float_scalar);
compiled_for!("avx2,fma,f16c", Avx2, false, quantized_avx2, float_avx2);
compiled_for!(
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
    Avx512,
    true,
    quantized_avx512,
    float_avx512
);
