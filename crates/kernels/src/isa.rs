//! The instruction sets kernels are written for, and the choice among them at run time.

#[cfg(target_arch = "x86_64")]
mod amx;

use std::fmt;

/// An instruction set that every kernel has a twin for.
///
/// All of them give the same bits; they differ in speed only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust; the reference that defines each kernel's order of arithmetic.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// AVX-512 with AMX-INT8 tiles for products of many rows.
    Amx,
}

/// An instruction set was asked for that cannot be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum IsaError {
    /// The name is none of those known.
    #[error("PLAINCHANT_ISA is {0:?}; use one of scalar, avx2, avx512, amx")]
    Unknown(String),
    /// The CPU lacks what the instruction set needs.
    #[error("instruction set {asked} was asked for, but this CPU supports only {}", list(.supported))]
    Unsupported {
        /// What was asked for.
        asked: Isa,
        /// What there is.
        supported: Vec<Isa>,
    },
}

fn list(isas: &[Isa]) -> String {
    isas.iter()
        .map(Isa::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

impl Isa {
    /// All of them, slowest first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Amx];

    /// The name used by `PLAINCHANT_ISA` and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        }
    }

    /// Whether this CPU (and operating system) can run it.
    #[must_use]
    pub fn is_supported(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_supported()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Amx => Self::Avx512.is_supported() && amx::is_ready(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 | Self::Amx => false,
        }
    }

    /// Those this CPU can run, slowest first.
    #[must_use]
    pub fn supported() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|isa| isa.is_supported())
            .collect()
    }

    /// The fastest this CPU can run.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL
            .into_iter()
            .rev()
            .find(|isa| isa.is_supported())
            .unwrap_or(Self::Scalar)
    }

    /// What `PLAINCHANT_ISA` asks for, or the best where it is empty or not set.
    ///
    /// # Errors
    /// When the variable names no instruction set, or one that this CPU lacks.
    pub fn from_env() -> Result<Self, IsaError> {
        match std::env::var_os("PLAINCHANT_ISA") {
            Some(name) if !name.is_empty() => Self::named(&name.to_string_lossy()),
            _ => Ok(Self::best()),
        }
    }

    /// The supported instruction set of that name, in whatever case.
    ///
    /// # Errors
    /// When there is none of that name, or this CPU lacks it.
    pub fn named(name: &str) -> Result<Self, IsaError> {
        let isa = Self::ALL
            .into_iter()
            .find(|isa| isa.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| IsaError::Unknown(name.to_owned()))?;
        if isa.is_supported() {
            Ok(isa)
        } else {
            Err(IsaError::Unsupported {
                asked: isa,
                supported: Self::supported(),
            })
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
